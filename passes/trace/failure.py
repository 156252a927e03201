"""Turn an exception from inside a trace into one block: what happened, in which module, on which line."""

from __future__ import annotations

import linecache
import os
import traceback
from types import FrameType

from torch import nn

from autopar.ir.errors import TraceError, UnsupportedError
from autopar.passes.trace.source import OURS, TORCH

_DATA_DEPENDENT = "data-dependent"


def trace_error(error: BaseException, model: nn.Module) -> TraceError:
    """The TraceError that tells of ``error``, raised somewhere inside a call of ``model``."""
    where, details = _place(error, model)
    return TraceError(f"the model cannot be traced: {_reason(error)}{where}", details=details)


def placed(error: UnsupportedError, model: nn.Module) -> UnsupportedError:
    """The same error with the module and the line that it was raised under."""
    where, details = _place(error, model)
    return UnsupportedError(f"{error}{where}", details={**error.details, **details})


def no_values(name: str) -> UnsupportedError:
    """The error for a constant of a trace that has no values."""
    if name.rpartition(".")[2].startswith("lifted_tensor"):  # what torch calls a tensor that the model has no name for
        return UnsupportedError(
            "forward uses a tensor that was made where torch.export does not look, such as by .data or "
            "torch.autograd.grad: use .detach(), and take derivatives outside of the model"
        )
    return UnsupportedError(
        f"{name} is a plain tensor attribute of a model on meta: it has no values; register it as a buffer"
    )


def _place(error: BaseException, model: nn.Module) -> tuple[str, dict[str, object]]:
    """The innermost module of the model, and the innermost line that is the user's."""
    paths = {id(module): path for path, module in model.named_modules()}
    module, path, line, code = type(model).__name__, "", "", ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        owner = paths.get(id(frame.f_locals.get("self")))
        if owner is not None:
            module, path = type(frame.f_locals["self"]).__name__, owner
        if _is_users(frame):
            line = f"{frame.f_code.co_filename}:{number}, in {frame.f_code.co_name}"
            code = linecache.getline(frame.f_code.co_filename, number).strip()
    text = f"\n  module: {path or '(the model itself)'} ({module})"
    if line:
        text += f"\n  line:   {line}"
    if code:
        text += f"\n          {code}"
    return text, {"module": path, "class": module, "line": line, "code": code}


def _is_users(frame: FrameType) -> bool:
    name = os.path.abspath(frame.f_code.co_filename)
    return not name.startswith((TORCH, OURS)) and not frame.f_code.co_filename.startswith("<")


def _reason(error: BaseException) -> str:
    """The first sentence of the message, in the user's words where the cause is known."""
    text = str(error).strip()
    if _DATA_DEPENDENT in text.split("\n", 1)[0] or "unbacked" in text.split("\n", 1)[0].lower():
        return (
            "control flow or a shape depends on the values of a tensor. Compute with torch.where or a mask "
            "instead, or move the decision out of forward"
        )
    if "Couldn't swap" in text:  # torch refuses, since the trace holds what the parameters were
        return (
            "forward casts or moves the parameters of a module (`.to`, `.half`, ...). Convert the model before, and in "
            "forward only what the module is given"
        )
    first = text.split("\n", 1)[0].strip()
    return f"{type(error).__name__}: {first}" if first else type(error).__name__

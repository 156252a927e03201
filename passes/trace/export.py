"""Run torch.export on a model whose tensors are stand-ins, and say plainly what went wrong if it fails."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules import transformer

from autopar.ir.errors import UnsupportedError
from autopar.passes.trace.again import seeded, set_first, watched
from autopar.passes.trace.buffers import batch_norms_of_one_device, replaced_buffers_written
from autopar.passes.trace.communication import failed_call, no_collectives, refusal
from autopar.passes.trace.failure import placed, trace_error
from autopar.passes.trace.functions import custom_functions
from autopar.passes.trace.hooks import no_hooks
from autopar.passes.trace.inference import inference_without_gradients
from autopar.passes.trace.inlined import BETWEEN
from autopar.passes.trace.layerdrop import kept_layers
from autopar.passes.trace.repeats import Repeats, UnrepeatableError
from autopar.passes.trace.source import lines_only
from autopar.passes.trace.structure import Structure

with contextlib.suppress(ImportError):  # what torch.export would import in its first call, which is measured
    importlib.import_module("torch.export._trace")

Loss = Callable[[Any, Any], Any]
PREFIX = "model."
"""What stands before every name of the model's own inside ``FlatModel``."""


@dataclass
class Returned:
    """What the last call of a ``FlatModel`` returned: its structure and the index of the loss; what it left changed.
    ``unset``: of what is asked for, what it did not set before it read it."""

    spec: Structure | None = None
    loss: int | None = None
    left: dict[str, bool] = field(default_factory=dict)
    unset: dict[str, None] = field(default_factory=dict)


class FlatModel(nn.Module):
    """The model as a function from a flat tuple of tensors to a flat tuple of tensors.

    With a loss function the keyword argument ``target`` is taken from the call and the output is
    ``(loss, output of the model)``. Each call fills ``returned``: torch.export restores attributes, so
    that what is to be known afterwards stands in an object of its own.
    """

    def __init__(self, model: nn.Module, in_spec: Structure, loss_fn: Loss | None) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self._in_spec = in_spec
        # one that is a module is none of the model's: its tensors are constants
        self._loss_fn = None if loss_fn is None else partial(_called, loss_fn)
        self.returned = Returned()
        self._watched = partial(watched, model, loss_fn)
        self.repeats: Repeats | None = None
        self.twice = False  # whether the model is called a second time, for results of both calls

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        repeats = contextlib.nullcontext() if self.repeats is None else self.repeats.tracing()
        if not self.twice:
            unset = set_first(self.model, self.returned.unset) if self.returned.unset else contextlib.nullcontext()
            with replaced_buffers_written(self.model), repeats, self._watched(self.returned.left), unset:
                return self._run(*self._in_spec.unflatten(tensors))
        results: tuple[torch.Tensor, ...] = ()
        for low in (True, False):
            with replaced_buffers_written(self.model), seeded(low):
                results += self._run(*self._in_spec.unflatten(tensors))
            if low:
                BETWEEN(results[0])
        return results

    def _run(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        if self._loss_fn is None:
            out = self.model(*args, **kwargs)
            flat, self.returned.spec = Structure.of(out)
            self.returned.loss = find_loss(out, flat)
        else:
            target = kwargs.pop("target")
            out = self.model(*args, **kwargs)
            loss = self._loss_fn(out, target)
            flat, self.returned.spec = Structure.of((loss, out))
            self.returned.loss = 0
        self.returned.spec.refuse_hidden()
        return tuple(flat)


def _called(loss_fn: Loss, output: Any, target: Any) -> Any:
    return loss_fn(output, target)


def find_loss(output: Any, flat: Sequence[torch.Tensor]) -> int | None:
    """Index in ``flat`` of the loss: the entry named ``loss``, else the only float scalar there is."""
    named = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    scalars = [i for i, tensor in enumerate(flat) if tensor.ndim == 0 and tensor.dtype.is_floating_point]
    found = [i for i in scalars if flat[i] is named]
    if found:
        return found[0]
    return scalars[0] if len(scalars) == 1 else None


def export(flat_model: FlatModel, tensors: Sequence[torch.Tensor]) -> torch.export.ExportedProgram:
    """The exported program of ``flat_model``.

    Requires: the model's tensors and ``tensors`` are stand-ins. Raises: TraceError with the module and
    the source line; UnsupportedError for a ``torch.autograd.Function`` whose backward would be lost, and for
    communication in forward; UnrepeatableError for any failure of a trace with ``flat_model.repeats``.
    """
    with (
        torch.enable_grad(), _quiet(), custom_functions(), no_collectives(), _masks_not_inspected(),
        batch_norms_of_one_device(), inference_without_gradients(), no_hooks(), _no_code_of_graphs(),
        kept_layers(flat_model.model), lines_only(),
    ):  # fmt: skip
        if flat_model.repeats is not None:
            try:
                with flat_model.repeats.hidden.away():
                    return torch.export.export(flat_model, tuple(tensors), strict=False)
            except Exception as error:
                raise UnrepeatableError from error
        try:
            return torch.export.export(flat_model, tuple(tensors), strict=False)
        except UnsupportedError as error:
            raise placed(error, flat_model.model) from None
        except Exception as error:  # noqa: BLE001 - a user's forward may raise anything
            call = failed_call(error.__traceback__)
            if call is not None:
                raise placed(refusal(call).with_traceback(error.__traceback__), flat_model.model) from None
            first = trace_error(error, flat_model.model)
        try:
            return torch.export.export(flat_model, tuple(tensors), strict=True)
        except Exception:  # noqa: BLE001 - the first failure is the one to tell
            raise first from None


@contextmanager
def _masks_not_inspected() -> Iterator[None]:
    """Inside, ``nn.Transformer`` does not look into a mask to see whether it is causal.

    It asks for the values of the mask, which a trace does not have. The answer is only a hint: the mask is
    used all the same, and ``canonicalize`` proves it causal where it is. The function is private to torch.
    """
    found = getattr(transformer, "_detect_is_causal_mask", None)
    if found is None:
        yield
        return

    def told(mask: object, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    transformer._detect_is_causal_mask = told
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = found


@contextmanager
def _no_code_of_graphs() -> Iterator[None]:
    """Inside, torch writes the Python code of a graph when it is asked for, which is never, and not at each change.

    The switch is private to torch; without it a trace takes longer.
    """
    try:
        from torch.fx._lazy_graph_module import _use_lazy_graph_module
    except ImportError:
        yield
        return
    with _use_lazy_graph_module(True):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, torch logs nothing, and what is written to stderr is only shown if all goes well.

    When a trace fails, torch prints the graph so far: what matters of a failure is in the error. Torch also warns
    of modules that keep a second list of their parameters, such as an LSTM: both are put back after the trace.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    written = io.StringIO()
    try:
        with redirect_stderr(written), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The tensor attribute", category=UserWarning)
            yield
    finally:
        logging.disable(before)
    sys.stderr.write(written.getvalue())

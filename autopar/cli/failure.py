"""An error as one block of text (what happened, where, what to do) or as one JSON document."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from autopar.cli.output import print_json, stderr
from autopar.ir.errors import AutoparError

# The common base of what typer raises for a wrong command line, whichever click it is built on.
COMMAND_LINE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
UNEXPECTED = 1


@dataclass(frozen=True, kw_only=True)
class Failure:
    """``code`` is the class of the error, the same in text and JSON."""

    code: str
    message: str
    exit_code: int
    details: Mapping[str, object] = field(default_factory=dict)


def failure_of(error: Exception) -> Failure:
    """What to tell about ``error``."""
    if isinstance(error, AutoparError):
        name = type(error).__name__
        return Failure(code=name, message=str(error), exit_code=error.exit_code, details=error.details)
    if isinstance(error, COMMAND_LINE_ERROR):
        return _command_line(error)
    where = _raised_at(error)
    return Failure(
        code=type(error).__name__,
        message=f"{str(error) or 'no message'}\n{where}\n"
        f"this is not a mistake that autopar knows: run again with --debug and report the traceback with "
        f"the output of `autopar env`",
        exit_code=UNEXPECTED,
        details={"at": where},
    )


def report(failure: Failure, error: Exception, *, as_json: bool, debug: bool) -> None:
    """Print the block on stderr, or the document on stdout; the traceback before it, on stderr."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        parts = {"code": failure.code, "message": failure.message, "details": _plain(failure.details)}
        print_json({"error": parts})
        return
    from rich.text import Text

    text = Text.assemble((failure.code, "bold red"), ": ", _indented(failure.message))
    stderr().print(text, soft_wrap=True)


def _plain(value: object) -> object:
    """``value`` as JSON can hold it; what it cannot hold becomes text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _indented(message: str) -> str:
    """Further lines of the block stand two spaces in."""
    first, *rest = message.strip().splitlines() or [""]
    return "\n".join([first, *("  " + line.strip() if line[:2] != "  " else line for line in rest)])


def _command_line(error: Any) -> Failure:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if context is not None:
        message += f"\nsee: {context.command_path} --help"
    return Failure(
        code="UsageError",
        message=message,
        exit_code=error.exit_code,
        details={} if context is None else {"command": context.command_path},
    )


def _raised_at(error: Exception) -> str:
    """The innermost line, in autopar if the traceback passes through it."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "at an unknown line"
    frame = frames[-1]
    path = Path(frame.filename)
    return f"at {path.parent.name}/{path.name}, line {frame.lineno}, in {frame.name}"

"""``main``: run one command and turn whatever it raises into an exit code and one block of text."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from autopar.cli.app import command
from autopar.cli.failure import Failure, failure_of, report
from autopar.cli.output import shown_as_notes

INTERRUPTED = 130
BROKEN_PIPE = 141
"""128 + SIGPIPE, as a shell reports it: whoever read the output has left."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``autopar argv`` (default: the process's own arguments) and return the exit code.

    Results go to stdout, all else to stderr. An error is one block on stderr, or one JSON document on stdout
    where ``--json`` is given; ``--debug`` adds the traceback.
    """
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        with shown_as_notes():
            returned = command().main(args=words, prog_name="autopar", standalone_mode=False)
        sys.stdout.flush()
        return returned if isinstance(returned, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _leave_pipe()
    except SystemExit as stop:  # typer's own answer to a pipe that nobody reads any more
        return _leave_pipe() if stop.code == 1 else _code(stop.code)
    except Exception as error:  # noqa: BLE001  (the last resort: any failure becomes a block and a code)
        return _failed(failure_of(error), error, flags=own_flags(words))


def own_flags(words: Sequence[str]) -> frozenset[str]:
    """The options ``--json`` and ``--debug`` that are autopar's: those of a script under ``run`` are not."""
    own = list(words)
    if "run" in own[:2]:
        end = next((i for i, word in enumerate(own) if word == "--" or word.endswith(".py")), len(own))
        own = own[:end]
    return frozenset(own) & {"--json", "--debug"}


def _failed(failure: Failure, error: Exception, *, flags: frozenset[str]) -> int:
    try:
        report(failure, error, as_json="--json" in flags, debug="--debug" in flags)
        sys.stdout.flush()
    except BrokenPipeError:
        return _leave_pipe()
    return failure.exit_code


def _leave_pipe() -> int:
    """Point stdout at nothing, so that the interpreter's last flush does not fail again."""
    real = sys.__stdout__
    if real is not None and sys.stdout is real:
        os.dup2(os.open(os.devnull, os.O_WRONLY), real.fileno())
    return BROKEN_PIPE


def _code(code: object) -> int:
    return code if isinstance(code, int) else 0

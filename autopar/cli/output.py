"""Where things go: results to stdout, notes and progress to stderr, files whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopar.ir.errors import IslandWarning, UsageError

if TYPE_CHECKING:
    from rich.console import Console


def stdout() -> Console:
    """The console for results; NO_COLOR and COLUMNS are honoured, a pipe gets no colours."""
    return _console(stderr=False)


def stderr() -> Console:
    """The console for everything else."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def note(text: str) -> None:
    """One line on stderr for the user to know."""
    from rich.text import Text

    stderr().print(Text.assemble(("note", "bold cyan"), ": ", text), soft_wrap=True)


def warn(text: str) -> None:
    """One line on stderr for the user to act on."""
    from rich.text import Text

    stderr().print(Text.assemble(("warning", "bold yellow"), ": ", text), soft_wrap=True)


@contextlib.contextmanager
def shown_as_notes() -> Iterator[None]:
    """Inside, autopar's own warnings are lines like ``warn``'s, without the place in autopar's source."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, IslandWarning):
                warn(str(message))
            else:
                others(message, category, *place, **more)

        warnings.showwarning = show
        yield


@contextlib.contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show that work goes on, on a terminal only; what is given to the result is shown behind ``text``."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.markup import escape

    with stderr().status(text) as status:
        yield lambda more: status.update(f"{text}: {escape(more)}")


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


def check_writable(path: Path, *, option: str = "-o") -> None:
    """Raise ``UsageError`` now for a file that could not be written after a long search."""
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"{option} {path}: is a folder; give the name of a file", details={"path": str(path)})
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        reason = "cannot be written to" if folder.is_dir() else "does not exist"
        raise UsageError(f"{option} {path}: the folder {folder} {reason}", details={"path": str(path)})


def write_atomic(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path``: readers see the old file or the whole new one."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            os.chmod(name, _mode(path))
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", details={"path": str(path)}) from None


def _mode(path: Path) -> int:
    """The permissions of the file that is replaced, else those that a new file gets."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask

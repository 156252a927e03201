"""When work on a problem is to end, however far it is.

A problem may be so entangled that laying it out alone takes minutes, and it is a search that knows how long it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from autopar.ir.errors import LimitReachedError

_overdue: ContextVar[Callable[[], bool] | None] = ContextVar("overdue", default=None)


@contextmanager
def until(overdue: Callable[[], bool]) -> Iterator[None]:
    """Within this, ``in_time`` raises once ``overdue`` says so."""
    token = _overdue.set(overdue)
    try:
        yield
    finally:
        _overdue.reset(token)


def in_time() -> None:
    """Raises LimitReachedError where no time is left; asked before each piece of work that may take long."""
    overdue = _overdue.get()
    if overdue is not None and overdue():
        raise LimitReachedError("the time limit ended work on a problem")

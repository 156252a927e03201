"""Garbage collection while a model is planned."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARELY = 100_000
"""So many more containers than were freed ask for a look through them: plans leave hardly any in cycles."""


@contextmanager
def settled_heap() -> Iterator[None]:
    """Keep what is there from being looked through for garbage, and look seldom.

    torch's modules alone take a quarter second each time; looking seldom saves a tracing about as much. Where the
    caller froze something itself nothing is done: it would be undone with it.
    """
    if gc.get_freeze_count():
        yield
        return
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(max(RARELY, usual[0]) if usual[0] else 0, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()

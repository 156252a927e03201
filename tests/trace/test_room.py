"""A call with room for frames: it gives what the call gives, however deep that goes."""

from __future__ import annotations

import pytest

from autopar.errors import UsageError
from autopar.room import SLOTS, with_room


def _deep(left: int) -> int:
    return 0 if left == 0 else 1 + _deep(left - 1)


def test_it_gives_what_the_call_gives():
    assert with_room(lambda: _deep(800)) == 800


def test_errors_pass():
    def fail() -> None:
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        with_room(fail)


def test_it_may_be_asked_for_inside_itself():
    assert with_room(lambda: with_room(lambda: 3)) == 3


def test_its_frame_is_larger_than_a_chunk():
    assert with_room.__code__.co_stacksize * 8 >= 16 << 10
    assert with_room.__code__.co_stacksize == SLOTS

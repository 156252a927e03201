"""Values that a forward reads, as tokens."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from autopar.passes.trace.tokens import Names, token

NOTHING = Names(modules={}, tensors={})


class Hooks(OrderedDict[str, int]):
    pass


def noted() -> OrderedDict[str, int]:
    found = OrderedDict[str, int]()
    found.note = 1  # type: ignore[attr-defined]
    return found


def test_empty_hooks_of_two_modules_are_alike() -> None:
    assert token(OrderedDict(), NOTHING) == token(OrderedDict(), NOTHING)


@pytest.mark.parametrize("other", [OrderedDict(a=1), {}, Hooks(), noted(), ()], ids=repr)
def test_empty_hooks_are_like_nothing_else(other: Any) -> None:
    assert token(other, NOTHING) != token(OrderedDict(), NOTHING)

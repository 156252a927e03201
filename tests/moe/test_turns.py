"""Two experts whose products are one batch, against one after the other."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autopar.runtime import experts_loop
from autopar.runtime.experts_turns import Turn, faster_by_two, turns
from tests.moe.plain import Sizes, operands
from tests.moe.test_experts_op import GPT_OSS, compared

# of tokens with two experts each: 11, 10, 0, 1, 8 and 10 rows, and two choices that are elsewhere
COUNTS = (11, 10, 0, 1, 8, 10)
UNEVEN = torch.tensor([each for each, count in enumerate(COUNTS) for _ in range(count)] + [6, -1]).view(2, -1).T


def seen(monkeypatch: pytest.MonkeyPatch, *, by_two: bool) -> list[Turn]:
    """Turns that have rows from here on, of forward passes by two if ``by_two``."""
    found: list[Turn] = []

    def noted(*given: Any, **options: Any) -> list[Turn]:
        made = turns(*given, **options)
        found.extend(turn for turn in made if turn.most)
        return made

    monkeypatch.setattr(experts_loop, "faster_by_two", lambda _: by_two)
    monkeypatch.setattr(experts_loop, "turns", noted)
    return found


@pytest.mark.parametrize("how", ["silu-glu", "relu", "silu-glu pairs", GPT_OSS])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("by_two", [False, True])
def test_experts_by_two_are_exact(how: str, transposed: bool, by_two: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one with fewer rows is filled up, and nothing of that comes through; forward and backward alike."""
    found = seen(monkeypatch, by_two=by_two)
    sizes, columns = Sizes(tokens=len(UNEVEN), experts=len(COUNTS)), 2 if "glu" in how else 1
    drawn = operands(sizes, columns=columns, transposed=transposed, biased=True, index=UNEVEN, marked=True)
    compared(drawn, how, transposed=transposed, kept_factor=1.25)
    together = [turn.experts for turn in found]
    once = [(0,), (1, 5), (3,), (4,)] if by_two else [(0,), (1,), (3,), (4,), (5,)]
    assert together == once * 2


def test_two_of_unequal_rows_are_filled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen(monkeypatch, by_two=True)
    index = torch.tensor([0] * 20 + [1] * 22).view(2, -1).T
    compared(operands(Sizes(tokens=21, experts=2), index=index, biased=True), "silu-glu")
    assert [(turn.experts, turn.most) for turn in found] == [((0, 1), 22)] * 2


def test_a_backward_pass_has_the_turns_of_its_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of threads may have changed in between."""
    drawn = operands(Sizes(tokens=len(UNEVEN), experts=len(COUNTS)), index=UNEVEN, biased=True)
    forward = experts_loop.forward

    def other_threads(*args: Any) -> tuple[Tensor, list[Tensor]]:
        monkeypatch.setattr(experts_loop, "faster_by_two", lambda _: True)
        made = forward(*args)
        monkeypatch.setattr(experts_loop, "faster_by_two", lambda _: False)
        return made

    monkeypatch.setattr(experts_loop, "forward", other_threads)
    compared(drawn, "silu-glu")


@given(counts=st.lists(st.integers(0, 500), max_size=12), by_two=st.booleans())
@settings(deadline=None)
def test_every_expert_has_one_turn(counts: list[int], by_two: bool) -> None:
    """With its own rows; two of about as many, if at all."""
    found = turns(list(accumulate(counts)), by_two=by_two)
    parts = {each: part for turn in found for each, part in zip(turn.experts, turn.parts, strict=True)}
    assert sum(len(turn.experts) for turn in found) == len(parts) == len(counts)
    token = torch.arange(sum(counts))
    for turn in found:
        rows = turn.filled(token)
        assert len(rows) == turn.most * len(turn.experts) <= 1.1 * sum(counts[each] for each in turn.experts)
        for expert, part, (its,) in turn.each(rows):
            assert torch.equal(its, token[part]) and len(its) == counts[expert]
    if not by_two:
        assert [turn.experts for turn in found] == [(each,) for each in range(len(counts))]


def test_products_of_one_thread_or_of_short_numbers_are_not_by_two() -> None:
    before = torch.get_num_threads()
    try:
        for threads, wanted in ((1, False), (2, torch.backends.mkl.is_available())):
            torch.set_num_threads(threads)
            assert [faster_by_two(torch.ones(1, dtype=each)) for each in (torch.float32, torch.float64)] == [wanted] * 2
            assert not faster_by_two(torch.ones(1, dtype=torch.bfloat16))
    finally:
        torch.set_num_threads(before)

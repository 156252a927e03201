"""Who gets in where an expert takes only so many."""

from __future__ import annotations

import pytest
import torch

from autopar.nn import capacity


@pytest.mark.parametrize(
    ("factor", "choices", "experts", "taken"),
    [(1.0, 8, 4, 2), (1.25, 8, 4, 3), (1.1, 100, 10, 11), (0.1, 4, 8, 1), (2.0, 9, 4, 5)],
)
def test_a_capacity_is_rounded_up_and_never_nothing(factor, choices, experts, taken):
    """1.1 times 10 is 11, although the product in floating point is above it."""
    assert capacity.capacity_of(factor, choices, experts) == taken


def test_choices_stand_in_line_by_rank_and_then_by_position():
    """Two prototypes of three tokens with two choices each: a line for each prototype."""
    index = torch.tensor([[[[0, 1], [5, 6]], [[1, 0], [6, 5]], [[0, 2], [5, 7]]]])
    line = capacity.in_line(index)
    assert line.tolist() == [[[0, 1, 0, 1, 0, 2], [5, 6, 5, 6, 5, 7]]]
    assert torch.equal(capacity.back(line, 2), index)


def test_a_place_counts_those_before_that_want_the_same():
    generator = torch.Generator().manual_seed(0)
    line = torch.randint(0, 5, (3, 2, 40), generator=generator)
    load = capacity.load_of(line, 6)
    found = capacity.places(line, load)
    for b in range(3):
        for z in range(2):
            row = line[b, z].tolist()
            assert found[b, z].tolist() == [row[:at].count(e) for at, e in enumerate(row)]
            assert load[b, z].tolist() == [row.count(e) for e in range(6)]

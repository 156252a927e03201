"""Columns that others beat are found whatever the order in which they come."""

from __future__ import annotations

import numpy as np
import pytest

from autopar.passes.solve.columns import undominated


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("size", [0, 1, 2, 60])
def test_what_is_left_is_beaten_by_none_and_what_is_gone_by_some(seed: int, size: int) -> None:
    draw = np.random.default_rng(seed)
    key, costs = draw.integers(0, 3, size), draw.integers(0, 6, (4, size))
    kept = undominated(key, costs, look_back=size)

    def beats(one: int, other: int) -> bool:
        return bool(key[one] == key[other] and (costs[:, one] <= costs[:, other]).all())

    assert not any(beats(one, other) for one in kept for other in kept if one != other)
    assert all(any(beats(one, gone) for one in kept) for gone in range(size) if gone not in kept)

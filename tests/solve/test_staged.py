"""The bound of a model that is cut into stages, as far as it is asked for."""

from __future__ import annotations

import pytest

from autopar.passes.solve import Model, Places, staged_bound_ns
from tests.solve.layers import layer_stack

PRICE = 0.05


@pytest.mark.parametrize("seed", range(6))
def test_a_bound_that_is_enough_is_not_raised_further(seed: int) -> None:
    model = Model(layer_stack(seed, count=12, variables=6, size=4))
    places = [
        Places(model=model, count=count, memory_bytes=memory, sent_ns=1000)
        for count, memory in ((1, 300_000_000), (2, 200_000_000), (1, 100_000_000))
    ]
    whole = staged_bound_ns(places, PRICE)
    assert whole > 0
    assert staged_bound_ns(places, PRICE, whole + 1) == whole
    for share in (0.1, 0.5, 0.9, 1.0):
        enough = int(whole * share)
        assert enough <= staged_bound_ns(places, PRICE, enough) <= whole
    assert staged_bound_ns(places, PRICE, 1) < whole

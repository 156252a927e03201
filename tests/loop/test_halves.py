"""Mixed precision: float32 parameters and gradients, and a loss that is scaled where float16 needs it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from tests import harness
from tests.loop import halves

MESHES = [("dp", 3), ("dp", 0), ("tp", 0)]
CASES = [(axis, zero, precision) for axis, zero in MESHES for precision in ("fp16", "bf16")]


@functools.cache
def launched() -> list[list[Any]]:
    work: list[harness.Work] = [
        (halves.scaled, ({axis: 2}, precision, {"zero": zero, "num_microbatches": 2}))
        for axis, zero, precision in CASES
    ]
    work += [(halves.overflowing, ({"dp": 2},)), (halves.inputs_of_half_precision, ({"dp": 2},))]
    return harness.run_processes(2, harness.each, work)


def furthest(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """Largest difference in units of each gradient's largest entry."""
    return max(float((found[name] - g).abs().max() / g.abs().max()) for name, g in wanted.items())


@pytest.mark.parametrize("at", range(len(CASES)), ids=["-".join(map(str, case)) for case in CASES])
def test_gradients_are_those_of_float32_to_the_accuracy_of_the_half(at: int) -> None:
    """Two accumulated steps of two microbatches; in float16 without scaling every one of them is zero."""
    wanted, precision = halves.expected(), CASES[at][2]
    for by_case in launched():
        found = by_case[at]
        assert found["active"] == (precision == "fp16")
        assert found["dtypes"] == {"torch.float32"}
        assert furthest(found["gradients True"], wanted["gradients"]) < (4e-3 if precision == "fp16" else 3e-2)
        torch.testing.assert_close(found["loss"], wanted["loss"], rtol=3e-3, atol=0)
        if precision == "fp16":
            assert not any(g.any() for g in found["gradients False"].values() if g is not None)


def test_an_overflow_on_one_rank_skips_the_step_on_all() -> None:
    """Nothing is left for the optimizer, earlier steps stay as they were, and the scale follows torch's rule."""
    for by_case in launched():
        found = by_case[len(CASES)]
        assert found["none"] and found["same"] and found["state"] == 0 and float(found["norm"]) == 0
        assert (found["halved"], found["skipped"]) == (2.0**15, 1)
        assert found["kept"] and found["stepped"] == 6
        assert found["grown"] == 2.0**15
        assert found["restored"] == (2.0**15, True, 2)


def test_a_batch_is_given_in_float32_or_in_what_the_program_takes() -> None:
    for by_case in launched():
        found = by_case[-1]
        assert found["losses"][0] == found["losses"][1]
        assert found["refused"] == (
            "input x: expected bf16[4,4,16] (this rank's part of bf16[8,4,16]), given f64[4,4,16]"
        )

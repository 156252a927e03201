"""What the cost model counts of an operation, and what an elementwise one of unlike tensors costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autopar.cost_model import CostProfile, compute_s
from autopar.cost_model.priced import OpCost, work
from autopar.ir.optable import TABLE

Tensors = list[tuple[tuple[int, ...], str]]
MUL, NEG, TO, LINEAR = "aten.mul.Tensor", "aten.neg.default", "aten.to.dtype", "aten.linear.default"
WHERE = "aten.where.self"
WHOLE, ROWS, ONE = (4, 6), (4, 1), ()
RATE = "[device.CPU]\nmixed_giga_elements_s = 1e-9\n"  # an element a second


@pytest.mark.parametrize(
    ("target", "tensors", "wanted", "elements"),
    [
        (MUL, [(WHOLE, "f32"), (WHOLE, "f32"), (WHOLE, "f32")], (True, True), (0, 0)),
        (MUL, [(WHOLE, "f32"), (ROWS, "f32"), (WHOLE, "f32")], (True, True), (24, 48)),
        (MUL, [(WHOLE, "f32"), (ROWS, "f32"), (WHOLE, "f32")], (True, False), (24, 24)),
        (MUL, [(WHOLE, "f32"), (ONE, "f32"), (WHOLE, "f32")], (True, False), (0, 0)),
        (TO, [(WHOLE, "bf16"), (WHOLE, "f32")], (True,), (24, 24)),
        (WHERE, [(WHOLE, "bool"), (WHOLE, "f32"), (WHOLE, "f32"), (WHOLE, "f32")], (True, True), (0, 0)),
        (NEG, [(WHOLE, "bf16"), (WHOLE, "bf16")], (True,), (0, 0)),
        (LINEAR, [(WHOLE, "f32"), ((5, 6), "f32"), ((4, 5), "f32")], (True, True), (0, 0)),
    ],
)
def test_an_elementwise_operation_of_unlike_tensors_goes_by_elements(
    target: str, tensors: Tensors, wanted: tuple[bool, ...], elements: tuple[int, int]
) -> None:
    """Of which each gradient takes as many; single numbers do not count."""
    forward, backward = work(target, TABLE[target], 0, tensors, 0, wanted)
    assert forward is not None and backward is not None
    assert (forward.mixed_elements, backward.mixed_elements) == elements


def test_what_another_operation_does_forward_need_not_be_alike() -> None:
    tensors: Tensors = [(WHOLE, "f32"), ((6,), "f32"), (WHOLE, "f32")]
    forward, backward = work("aten.add.Tensor", TABLE["aten.add.Tensor"], 0, tensors, 0, (True, True), joined=True)
    assert forward is None
    assert backward is not None and backward.mixed_elements == 0


def forward_of(tensors: Tensors) -> OpCost:
    forward, _ = work(MUL, TABLE[MUL], 0, tensors, 0, (True, True))
    assert forward is not None
    return forward


def test_the_rate_of_elements_is_the_profile_s(write: Callable[[str], Path], builtin: CostProfile) -> None:
    forward = forward_of([(WHOLE, "f32"), (ROWS, "f32"), (WHOLE, "f32")])
    assert compute_s(forward, "CPU", CostProfile(write(RATE))) == pytest.approx(24.0)
    assert compute_s(forward, "CPU", builtin) < 1e-6


def test_so_it_is_beside_measured_seconds(write: Callable[[str], Path]) -> None:
    """Which are of tensors that are alike: the longer of both."""
    profile = CostProfile(write(f'{RATE}[op."{MUL}"]\nbytes = [1e2]\nseconds = [30.0]\n'))
    alike = forward_of([(WHOLE, "f32"), (WHOLE, "f32"), (WHOLE, "f32")])
    few = forward_of([(WHOLE, "f32"), (ROWS, "f32"), (WHOLE, "f32")])
    many = forward_of([((4, 25), "bool"), (ROWS, "f32"), ((4, 25), "f32")])
    assert compute_s(alike, "CPU", profile) > 30.0
    assert compute_s(few, "CPU", profile) > 30.0
    assert compute_s(many, "CPU", profile) > 96.0

"""Through the public API, on gloo processes: buffers, odd parameters and odd calls are those of one device."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from torch import Tensor

from autopar.runtime.parity import compare
from tests import harness
from tests.families import FAMILIES
from tests.state import processes
from tests.state.processes import Case

ONE = [Case(name=name, mesh={"dp": 1}) for name in ("residual", "averages", "options")]
TWO = [
    *(
        Case(name=name, mesh=mesh)
        for name in ("tied", "batch norm 2d") for mesh in ({"dp": 2}, {"tp": 2})
    ),
    *(Case(name=name, mesh={"dp": 2}) for name in ("auxiliary", "reused", "averages", "codebook")),
    *(
        Case(name=name, mesh={"dp": 2}, options={"recompute": "full", "zero": zero})
        for name, zero in (("moving", 0), ("scaled", 3))
    ),
    *(Case(name=name, mesh={"dp": 2}) for name in ("nested", "options", "absent", "tuple", "expanded", "integers")),
    Case(name="synchronised", mesh={"dp": 2}), Case(name="sliced", mesh={"tp": 2}),
    Case(name="options", mesh={"tp": 2}),
    Case(name="scaled", mesh={"dp": 2}, options={"zero": 3, "num_microbatches": 2}),
]  # fmt: skip
MORE = [
    *(Case(name="residual", mesh=mesh) for mesh in ({"dp": 2}, {"tp": 2})),
    *(
        Case(name=name, mesh={"dp": 2}, options={"recompute": "full", "zero": zero})
        for name, zero in (("residual", 0), ("residual", 3), ("moving", 3), ("scaled", 0))
    ),
    *(Case(name="scaled", mesh={"dp": 2}, options={"zero": zero, "num_microbatches": 2}) for zero in (0, 2)),
    *(Case(name=name, mesh={"tp": 2}) for name in ("auxiliary", "reused", "averages", "codebook")),
    *(Case(name="resnet", mesh=mesh) for mesh in ({"dp": 2}, {"tp": 2})),
    Case(name="segformer", mesh={"dp": 2}),
]
LAUNCHES = {"one": (1, ONE), "two": (2, TWO), "more": (2, MORE)}


@functools.cache
def launched(launch: str) -> list[list[Any]]:
    """Results by rank and case: the cases of a launch share its processes."""
    size, cases = LAUNCHES[launch]
    work: list[harness.Work] = [(processes.train, (case,)) for case in cases]
    work += [(processes.refusals, ())] if launch == "two" else []
    return harness.run_processes(size, harness.each, work, timeout_s=280)


@functools.cache
def expected(name: str) -> dict[str, Any]:
    return processes.expected(name)


def same(found: dict[str, Any], wanted: dict[str, Any], what: str, tolerance: float) -> None:
    """Tensors agree, and what is None or no tensor is equal."""
    assert list(found) == list(wanted), what
    for name, value in wanted.items():
        assert isinstance(found[name], Tensor) == isinstance(value, Tensor), f"{what}: {name}"
        assert isinstance(value, Tensor) or found[name] == value, f"{what}: {name}"
        assert not isinstance(value, Tensor) or found[name].dtype == value.dtype, f"{what}: {name}"
    tensors = {name: value for name, value in wanted.items() if isinstance(value, Tensor)}
    compare({name: found[name] for name in tensors}, tensors, tol=tolerance, what=what)


@pytest.mark.parametrize(
    ("launch", "case"),
    [
        pytest.param(name, case, id=f"{name}-{case}", marks=[pytest.mark.slow] * (name == "more"))
        for name, (_, cases) in LAUNCHES.items()
        for case in cases
    ],
)
def test_training_is_that_of_one_device(launch: str, case: Case) -> None:
    """Losses, gradients (None where one device has none), outputs, parameters and buffers after three forwards."""
    wanted = expected(case.name)
    tolerance = FAMILIES[case.name].tolerance if case.name in FAMILIES else 1e-10
    for by_case in launched(launch):
        found = by_case[LAUNCHES[launch][1].index(case)]
        assert found["kind"] == wanted["kind"]
        for what in ("losses", "outputs"):
            same(numbered(found[what]), numbered(wanted[what]), f"{case}: {what}", tolerance)
        for step, (got, want) in enumerate(zip(found["gradients"], wanted["gradients"], strict=True)):
            same(got, want, f"{case}: gradients of step {step}", tolerance)
        for what in ("state", "buffers"):
            same(found[what], wanted[what], f"{case}: {what}", tolerance)


def numbered(values: list[Any]) -> dict[str, Any]:
    return {str(at): value for at, value in enumerate(values)}


def test_a_call_that_is_not_the_examples_is_refused() -> None:
    """What is no tensor is a constant of the trace; a refused call changes nothing."""
    for by_case in launched("two"):
        found = by_case[-1]
        assert found["another number"] == (
            "input scale: given 3.0, the example inputs had 2.0; what is no tensor is a constant of the program"
        )
        assert found["another string"].startswith("input mode: given 'mean', the example inputs had 'sum'")
        assert found["left out"] == "input scale is missing; the inputs are xs, mask, scale, mode, twice, form"
        assert found["no mask"].startswith("input mask: given None, the example inputs had tensor")
        assert found["a tensor for a number"].startswith("input scale: given tensor, the example inputs had 2.0")
        assert "given [tensor], the example inputs had [tensor, {'b': tensor}]" in found["other nesting"]
        assert found["unknown"].startswith("more is not an input")
        assert found["shape"].startswith("input xs.0: expected f64[4,8] (this rank's part of f64[8,8])")


def test_gradients_of_what_is_never_used_are_none() -> None:
    """As on one device, so that an optimizer leaves it alone; frozen parameters alike."""
    unused = ["unused.weight", "unused.bias", "frozen.weight", "frozen.bias"]
    for by_case in launched("two"):
        for case, found in zip(TWO, by_case, strict=False):
            if case.name == "reused":
                assert [name for name, gradient in found["gradients"][0].items() if gradient is None] == unused

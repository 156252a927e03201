"""A run that was saved at one layout goes on at another, and on one device, as if it had never stopped."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from autopar.runtime.parity import compare
from tests import harness
from tests.loop import restarts
from tests.loop.restarts import Case

NAMES = ("tied", "dropout", "running statistics", "never used")
START = {"dp": 2}
TWO = [Case(name=name, mesh={"tp": 2}) for name in NAMES]
ONE = [Case(name=name, mesh={"dp": 1}) for name in NAMES]
FOUR = [Case(name=name, mesh={"dp": 2, "tp": 2}, options={"zero": zero}) for name in NAMES for zero in (0, 3)]


@functools.cache
def saved() -> list[dict[str, Any]]:
    """Runs at {dp 2} under ZeRO 3, by model; from rank 0."""
    work: list[harness.Work] = [(restarts.saved, (Case(name=name, mesh=START, options={"zero": 3}),)) for name in NAMES]
    return harness.run_processes(2, harness.each, work)[0]  # type: ignore[no-any-return]


@functools.cache
def resumed(launch: str) -> list[list[Any]]:
    size, cases = {"one": (1, ONE), "two": (2, TWO), "four": (4, FOUR)}[launch]
    work: list[harness.Work] = [
        (restarts.resumed, (case, restarts.as_bytes(saved()[NAMES.index(case.name)]))) for case in cases
    ]
    if launch == "two":
        more = Case(name="frozen and tied", mesh={"dp": 2}, options={"zero": 3})
        work += [(restarts.from_one_device, (more,)), (restarts.refusals, (more,))]
    return harness.run_processes(size, harness.each, work, timeout_s=300)


EACH = [
    pytest.param(launch, at, id=f"{launch}-{case}", marks=[pytest.mark.slow] * (launch != "two"))
    for launch, cases in (("one", ONE), ("two", TWO), ("four", FOUR))
    for at, case in enumerate(cases)
]


@pytest.mark.parametrize(("launch", "at"), EACH)
def test_a_run_goes_on_at_another_layout(launch: str, at: int) -> None:
    """What is loaded is what was saved, bit by bit; losses and parameters afterwards are those of the unbroken run."""
    for by_case in resumed(launch):
        found, wanted = by_case[at], saved()[NAMES.index(FOUR[at].name if launch == "four" else NAMES[at])]
        for name, tensor in wanted["state"].items():
            assert torch.equal(found["state"][name], tensor), name
        assert list(found["optimizer"]["state"]) == list(wanted["optimizer"]["state"])
        for name, values in wanted["optimizer"]["state"].items():
            loaded = found["optimizer"]["state"][name]
            assert all(torch.equal(loaded[key], value) for key, value in values.items()), name
        assert found["optimizer"]["param_groups"] == wanted["optimizer"]["param_groups"]
        assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-10)
        compare(found["end"], wanted["end"], tol=1e-10, what="parameters")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "dropout"])
def test_the_original_model_goes_on_with_what_was_saved(name: str) -> None:
    """``load_state_dict`` is strict, the optimizer's state is read by torch's own function."""
    wanted = saved()[NAMES.index(name)]
    found = restarts.alone(Case(name=name, mesh={}), restarts.as_bytes(wanted))
    assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-10)
    compare(found["end"], wanted["end"], tol=1e-10, what="parameters")


def test_parameters_that_are_never_used_have_no_state() -> None:
    states = saved()[NAMES.index("never used")]["first"]["state"]
    assert states and not [name for name in states if name.startswith(("unused", "frozen"))]


def test_a_state_dict_of_one_device_is_loaded() -> None:
    for by_case in resumed("two"):
        assert not any(bool(difference.any()) for difference in by_case[-2].values())


def test_states_that_do_not_fit_are_refused_and_change_nothing() -> None:
    for by_case in resumed("two"):
        found = by_case[-1]
        assert found["names"].startswith("the state is not that of this model: missing bert.embeddings")
        assert found["names"].endswith("unexpected more")
        assert "has shape [3, 3] in the state" in found["shape"]
        assert found["assign"].startswith("load_state_dict(assign=True) would replace tensors")
        assert "2 groups here, 1 there" in found["groups"]
        assert "has a parameter that is not this model's" in found["stranger"]
        assert "by the plan and cannot become torch.float16" in found["half"]
        assert found["same device"] == "accepted"

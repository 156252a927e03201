"""What is said to be in conflict is, and nothing of it is idle; what is said to work does."""

from __future__ import annotations

from typing import Any

import pytest

import autopar
from autopar.errors import InfeasibleError
from autopar.models import resolve

FIXED: dict[str, Any] = {"mixed_precision": "bf16"}


def refused(cluster: str, **options: Any) -> InfeasibleError:
    model = resolve("zoo:gpt2", batch_size=64, seq_len=256, layers=4)
    with pytest.raises(InfeasibleError) as found:
        autopar.plan(model.model, model.example_inputs, cluster=cluster, **FIXED, **options)
    return found.value


def plans(cluster: str, **options: Any) -> bool:
    model = resolve("zoo:gpt2", batch_size=64, seq_len=256, layers=4)
    try:
        autopar.plan(model.model, model.example_inputs, cluster=cluster, **FIXED, **options)
    except InfeasibleError:
        return False
    return True


def listed(error: InfeasibleError, what: str) -> list[str]:
    found = error.details[what]
    assert isinstance(found, list)
    return [str(item) for item in found]


@pytest.mark.slow
def test_pins_that_are_to_blame_are_named_and_dropping_them_works() -> None:
    """Two pins ask for too much memory together; the third has nothing to do with it."""
    pins: dict[str, Any] = {"zero": 0, "num_microbatches": 1, "recompute": "full"}
    cluster, budget = "1x4xH100-SXM", "0.9GB"
    error = refused(cluster, memory_budget=budget, **pins)
    blamed = {name for name in pins if any(text.startswith(name) for text in listed(error, "conflict"))}
    assert blamed
    idle = {name: value for name, value in pins.items() if name not in blamed}
    assert plans(cluster, memory_budget=budget, **idle)
    for name in blamed:  # without one of them the others are no longer in conflict
        rest = {other: pins[other] for other in blamed if other != name}
        assert plans(cluster, memory_budget=budget, **rest), name
    for name in pins:
        if any(text.startswith(f"leaving {name}") for text in listed(error, "relaxations")):
            assert plans(cluster, memory_budget=budget, **{k: v for k, v in pins.items() if k != name})


@pytest.mark.slow
def test_what_is_said_to_work_does() -> None:
    error = refused("1x2xH100-SXM", memory_budget="0.3GB")
    changes = listed(error, "relaxations")
    assert changes[0].startswith("--memory-budget ")
    assert plans("1x2xH100-SXM", memory_budget=changes[0].removeprefix("--memory-budget "))
    nodes = next(int(change.split(" ")[0]) for change in changes if " nodes of " in change)
    assert plans(f"{nodes}x2xH100-SXM", memory_budget="0.3GB")
    for change in changes:
        if change.startswith("--optimizer "):
            assert plans("1x2xH100-SXM", memory_budget="0.3GB", optimizer=change.removeprefix("--optimizer "))
    assert all(change in str(error) for change in changes)

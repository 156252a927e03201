"""A search that runs out of time leaves even the problem at hand, and says what it knows by then."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.errors import LimitReachedError
from autopar.passes import search as searching
from autopar.passes.found import Limits
from autopar.passes.search import search
from autopar.passes.solve import Model
from autopar.passes.solve.deadline import until
from tests.search.test_exhaustive import instance
from tests.solve.layers import layer_stack

AMPLE_BYTES = 10**9


def test_a_problem_is_laid_out_in_time_only() -> None:
    calls = iter([False, False, True])
    with until(lambda: next(calls)), pytest.raises(LimitReachedError, match="time limit"):
        Model(layer_stack(0, count=3, variables=4, size=3)).root.run(None)  # type: ignore[arg-type]
    Model(layer_stack(0, count=3, variables=4, size=3))  # whatever the time, elsewhere


def test_without_a_plan_it_ends_after_its_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readied, arguments = instance(3, tmp_path)
    monkeypatch.setattr(searching, "GRACE_S", 0.0)
    limits = Limits(memory_bytes=AMPLE_BYTES, time_limit_s=1e-9)
    with pytest.raises(LimitReachedError, match="ended the search before any plan was found: raise it"):
        search(readied.model, arguments.cluster, arguments.profile, limits)


def test_within_its_grace_it_finds_one_with_a_bound(tmp_path: Path) -> None:
    readied, arguments = instance(3, tmp_path)
    whole = search(readied.model, arguments.cluster, arguments.profile, Limits(memory_bytes=AMPLE_BYTES))
    limits = Limits(memory_bytes=AMPLE_BYTES, time_limit_s=1e-9)
    found = search(readied.model, arguments.cluster, arguments.profile, limits)
    assert whole.complete and not found.complete
    assert found.bound_ns <= whole.bound_ns <= whole.objective_ns <= found.objective_ns


@pytest.mark.parametrize("problem", range(1, 60, 7))
def test_cut_off_in_the_middle_of_a_problem_the_bound_holds(
    problem: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readied, arguments = instance(3, tmp_path)
    limits = Limits(memory_bytes=AMPLE_BYTES)
    whole = search(readied.model, arguments.cluster, arguments.profile, limits)
    asked = 0

    def late(state: searching._Search) -> bool:
        nonlocal asked
        asked += state.standing.best is not None
        return asked > problem

    monkeypatch.setattr(searching._Search, "_late", late)
    found = search(readied.model, arguments.cluster, arguments.profile, limits)
    assert found.bound_ns <= whole.objective_ns <= found.objective_ns
    assert problem > 1 or not found.complete

"""Several modules in one process, at once and one after the other, in one world and in the next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.harness import run_processes
from tests.loop import worlds

TWO: list[Mapping[str, int]] = [{"dp": 2}, {"tp": 2}]
FOUR: list[Mapping[str, int]] = [{"dp": 2, "cp": 2}, {"dp": 2, "tp": 2}, {"dp": 4}]


@pytest.mark.parametrize("meshes", [TWO, pytest.param(FOUR, marks=pytest.mark.slow)], ids=["two", "four"])
def test_modules_of_one_world_do_not_disturb_each_other(meshes: list[Mapping[str, int]]) -> None:
    for found in run_processes(2 if meshes is TWO else 4, worlds.several, meshes, timeout_s=300):
        assert found == [pytest.approx(worlds.expected(), rel=1e-10)] * (2 * len(meshes) + 1)


@pytest.mark.slow  # an axis that is all of the world has the world's group, which every world has
def test_a_module_of_a_new_world_knows_nothing_of_the_old(tmp_path: Path) -> None:
    """DTensor remembers results by meshes that are equal in both worlds, and so groups that are gone."""
    for found in run_processes(4, worlds.worlds, str(tmp_path / "store"), FOUR, timeout_s=300):
        assert found == [pytest.approx(worlds.expected(), rel=1e-10)] * (2 * len(FOUR))

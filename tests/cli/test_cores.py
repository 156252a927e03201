"""No more processes are started than a container gives time for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autopar.passes import cores


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where control groups say what they give, on a machine of 8 cores; this process is in the group a/b."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cores, "CGROUPS", tmp_path)
    monkeypatch.setattr(cores, "OWN_CGROUP", tmp_path / "own")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "own").write_text("4:memory:/elsewhere\n0::/a/b\n")
    return tmp_path


@pytest.mark.parametrize(
    ("above", "own", "usable"),
    [
        ("max 100000", "max 100000", 8), ("max 100000", "200000 100000", 2), ("150000 100000", "max 100000", 2),
        ("300000 100000", "50000 100000", 1), ("1600000 100000", None, 8), ("", "max", 8),
    ],
)  # fmt: skip
def test_the_least_that_a_group_gives_counts(limits: Path, above: str, own: str | None, usable: int) -> None:
    (limits / "a" / "cpu.max").write_text(above)
    if own is not None:
        (limits / "a" / "b" / "cpu.max").write_text(own)
    assert cores.usable_cores() == usable


def test_without_control_groups_all_cores_are_usable(limits: Path) -> None:
    (limits / "own").unlink()
    assert cores.usable_cores() == 8
    (limits / "cpu.max").write_text("300000 100000")  # a container sees its own group as the first
    assert cores.usable_cores() == 3

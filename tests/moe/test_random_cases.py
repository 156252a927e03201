"""Random mixtures on random meshes of four processes train as on one device."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests import harness
from tests.families.mixtures import MIXTURES
from tests.fuzz.budget import tried
from tests.moe import ranks
from tests.moe.ranks import LAYERS, Case

MESHES: tuple[dict[str, int], ...] = (
    {"ep": 4}, {"tp": 4}, {"dp": 4}, {"dp": 2, "ep": 2}, {"ep": 2, "dp": 2}, {"ep": 2, "tp": 2}, {"tp": 2, "ep": 2},
    {"dp": 2, "tp": 2}, {"cp": 2, "ep": 2}, {"pp": 2, "ep": 2}, {"pp": 2, "tp": 2}, {"pp": 2, "dp": 2},
)  # fmt: skip
ROUTED = ("mixtral", "qwen3-moe", "deepseek-v3", "gpt-oss", "olmoe", "granite-moe", *LAYERS)
"""Whose routers ``ranks.built`` knows."""


def drawn(seed: int) -> Case:
    rng = Random(seed)
    mesh, family = rng.choice(MESHES), rng.choice([*LAYERS, *(family.name for family in MIXTURES)])
    options: dict[str, Any] = {}
    if rng.random() < 0.6:
        options["zero"] = rng.choice((0, 1, 2, 3))
    if rng.random() < 0.5:
        options["recompute"] = rng.choice(("full", "selective", "none"))
    if "pp" in mesh:
        options |= {"num_microbatches": rng.choice((2, 4)), "schedule": rng.choice(("1f1b", "gpipe"))}
    elif rng.random() < 0.5:
        options["num_microbatches"] = 2
    # Not "same": of experts that are equally good the order of sums says which is next, and here it may be any.
    routings = ["own", "own", "skewed"] if family in ROUTED else ["own"]
    return Case(family=family, mesh=mesh, options=options, routing=rng.choice(routings))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_random_cases_until_the_time_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    def run(seed: int) -> bool:
        case = drawn(seed)
        try:
            harness.run_processes(case.world, ranks.trained, case, timeout_s=300)
        except AssertionError as error:
            error.add_note(str(case))
            raise
        return False

    right, _ = tried(run, 5, capsys)
    assert right

"""Plans that are optimal for random prices: placements that no sane price would choose are right as well."""

from __future__ import annotations

import pytest

from autopar.passes.assignment import decode
from autopar.passes.build import build
from autopar.passes.candidate import with_time
from autopar.passes.conversions import Conversions
from autopar.passes.lower import lower
from autopar.passes.solve import solve
from tests.lowered import pricing_of
from tests.parity.planned import MEMORY_BYTES, Case, Planned, check, mesh_of, places, prepared, run
from tests.parity.shuffled import shuffled

MODELS = ("gpt2", "llama", "bert")
FEW = [
    (name, mesh, n, seed)
    for name in MODELS
    for mesh, n, seed in (("tp=2", 1, 0), ("x=2", 2, 1), ("x=4", 2, 9), ("cp=2", 2, 3))
]
MANY = [
    *((name, mesh, n, s) for name in MODELS for mesh in ("tp=4", "x=2", "dp=2") for n in (1, 2) for s in range(10, 14)),
    *((name, "dp=2,tp=2", 2, seed) for name in MODELS for seed in (0, 1)),
    *((name, "x=2,dp=2", 1, seed) for name in MODELS for seed in (0, 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "mesh", "microbatches", "seed"), [*FEW, *(pytest.param(*c, marks=pytest.mark.slow) for c in MANY)]
)
@pytest.mark.parametrize("folded", [True, False], ids=["folded", "unfolded"])
def test_any_legal_plan_is_right(name: str, mesh: str, microbatches: int, seed: int, folded: bool) -> None:
    """Loss and gradients do not depend on where things are."""
    case = Case(model=name, mesh=mesh, microbatches=microbatches, folded=folded)
    model = prepared(name, case.layers, folded, None, None)
    full = with_time(mesh_of(mesh), microbatches)
    pricing = pricing_of(full)
    encoded = build(model, places(name, case.layers, folded), pricing, microbatches)
    solution = solve(shuffled(encoded.problem, seed), memory_bytes=MEMORY_BYTES, effort=1)
    assignment = decode(model, encoded, solution, full)
    program = lower(model, assignment, Conversions(pricing), microbatches)
    plan = Planned(
        case=case, model=model, encoded=encoded, assignment=assignment, program=program, solution=solution
    )
    check(run(plan), name, 1)

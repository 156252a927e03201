"""Layers that return something are one block, and what they return is what they return on one device."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

import autopar
from autopar.runtime.parity import compare
from tests import harness
from tests.parity import collected
from tests.parity.collected import LAYERS, Case

DP2, TP2, EP2, DP2TP2 = {"dp": 2}, {"tp": 2}, {"ep": 2}, {"dp": 2, "tp": 2}
# a layer in the middle laid out otherwise than the rest
APART = [autopar.split("transformer.h.1.mlp.c_fc.weight", dim=1, axis="tp")]
CASES = [
    Case(model="gpt2", mesh=DP2, options={"zero": 3, "recompute": "full"}),
    Case(model="gpt2", mesh=DP2, options={"num_microbatches": 2, "recompute": "selective"}),
    Case(model="gpt2", mesh=TP2),
    Case(model="gpt2", mesh=TP2, options={"constraints": APART}),
    Case(model="mixtral", mesh=DP2, options={"recompute": "full"}),
    Case(model="mixtral", mesh=TP2),
    Case(model="mixtral", mesh=EP2),
    Case(model="supervised", mesh=DP2, options={"recompute": "full", "num_microbatches": 2}),
    Case(model="supervised", mesh=TP2),
    Case(model="gpt2", mesh={"pp": 2}, options={"num_microbatches": 2}),
    Case(model="supervised", mesh={"pp": 2}, options={"num_microbatches": 2}),
]
SLOW = [
    Case(model="gpt2", mesh=DP2TP2, options={"zero": 2}),
    Case(model="mixtral", mesh={"dp": 2, "ep": 2}, options={"zero": 3}),
    Case(model="mixtral", mesh={"ep": 2, "tp": 2}),
    Case(model="mixtral", mesh={"ep": 4}, options={"recompute": "selective"}),
    Case(model="gpt2", mesh={"pp": 2, "dp": 2}, options={"num_microbatches": 4, "zero": 1}),
]
ALL = [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)]


@functools.cache
def expected(model: str) -> dict[str, Any]:
    return collected.expected(Case(model=model, mesh={}))


@pytest.mark.parametrize("case", ALL, ids=str)
def test_layers_return_what_they_return_on_one_device(case: Case) -> None:
    """Losses and gradients of ``train_step`` and of a plain forward, every output of it, and of one in eval()."""
    wanted = expected(case.model)
    for found in harness.run_processes(math.prod(case.mesh.values()), collected.run, case):
        tolerance = 1e-6 if case.model == "mixtral" else 1e-10  # LLaMA's norms and the router compute in float32
        compare({"loss": found["loss"]}, {"loss": wanted["outputs"]["loss.0"]}, tol=tolerance, what="losses")
        assert "pp" in case.mesh or sum(found["calls"]) == LAYERS
        assert "pp" in case.mesh or len(found["calls"]) < LAYERS
        for name, like in (("stepped", "gradients"), ("outputs",) * 2, ("gradients",) * 2, ("evaluated",) * 2):
            if name in found and "pp" not in case.mesh:
                assert len(found[name]) == len(wanted[like])
                compare(found[name], wanted[like], tol=tolerance, what=name)
        if "pp" in case.mesh:
            mine = {name: wanted["gradients"][name] for name in found["stepped"]}
            compare(found["stepped"], mine, tol=tolerance, what="gradients")

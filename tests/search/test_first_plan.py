"""The first plan that a search finds is not proven before there is another."""

from __future__ import annotations

from dataclasses import replace

from autopar.arguments import check
from autopar.compiling import ready
from autopar.passes.bounds import Bounds
from autopar.passes.outer import Rung, outer_candidates
from autopar.passes.plain import Plain
from autopar.passes.positions import positions
from autopar.passes.standing import Standing
from autopar.zoo import find


def test_a_loose_first_plan_is_left_and_gone_on_with_later() -> None:
    arguments = check(
        cluster="2x5xV100-SXM2-32GB", name="model", mixed_precision="fp16", mesh={"dp": 2, "cp": 5}, num_microbatches=8
    )
    size = {"batch_size": 64, "seq_len": 2000}
    model = ready(*find("llama3-8b").build(**size), arguments).model
    marks, limits = positions(model.graph, model.rules, model.settings.inputs), arguments.limits()
    bounds = Bounds(
        model=model, cluster=arguments.cluster, profile=arguments.profile, positions=marks,
        memory_bytes=limits.memory_bytes,
    )  # fmt: skip
    standing = Standing(bounds, limits)
    plain = Plain(standing)
    (candidate,) = outer_candidates(limits, 10, 64, 2000, 32)
    again, _ = plain.settle(replace(candidate, rung=Rung.LIMITED))
    assert standing.best is not None and again is not None and not standing.tried
    first_ns = standing.best.objective_ns
    assert again.bound_ns < 0.9 * first_ns
    left, _ = plain.settle(again)
    assert left is None and len(standing.tried) == 1
    assert again.bound_ns <= standing.tried[0].bound_ns <= standing.best.objective_ns <= first_ns

"""A classifier of 100,000 classes behind a small backbone: data parallelism here, split classes there."""

from __future__ import annotations

from typing import Any

import pytest

import autopar
from autopar.ir.plan import Plan
from autopar.models import resolve

CLUSTER = "8x8xV100-SXM2-32GB@32Gb/s"


def gradient_bytes(plan: Plan) -> int:
    return sum(each.bytes * each.count for each in plan.collectives if each.phase == "grad")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_backbone_is_data_parallel_and_the_classifier_split() -> None:
    """At least nine times fewer bytes of gradients than plain data parallelism, and faster than with data axes alone.

    These have all devices compute all classes where that is faster than to reduce the classifier's gradient, as
    it is on this network; on one three times as fast they reduce all gradients, like plain data parallelism.
    """
    found = resolve("zoo:resnet50-100k", batch_size=4096)

    def planned(cluster: str = CLUSTER, **options: Any) -> Plan:
        return autopar.plan(found.model, found.example_inputs, cluster=cluster, **options)

    plan, data = planned(), planned(mesh={"dp": 64}, zero=0)
    plain = planned("8x8xV100-SXM2-32GB@100Gb/s", mesh={"dp": 64}, zero=0)
    whole = sum(4 * parameter.numel() for parameter in found.model.parameters())
    assert 0.999 * whole < gradient_bytes(plain) <= whole  # those of batch norms are summed in backward, as statistics
    split = {name for name, placed in plan.placements.items() if any("S(" in place for place in placed.values())}
    assert split == {"classifier.1.weight", "classifier.1.bias"}
    assert 9 * gradient_bytes(plan) <= gradient_bytes(plain)
    assert gradient_bytes(data) < gradient_bytes(plain) and plan.objective_s < data.objective_s
    assert plan.gap <= 0.01

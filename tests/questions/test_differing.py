"""Two plans side by side."""

from __future__ import annotations

import pytest

from autopar.cost_model import Cluster, CostProfile, axis_groups, collective_s
from autopar.differing import differences
from tests.cli.plans import example_plan


def test_a_plan_differs_in_nothing_from_itself():
    found = differences(example_plan(), example_plan())
    assert found.same
    assert all(amount.left == amount.right for amount in (*found.time_s, *found.memory_bytes))


def test_the_parts_of_the_time_sum_to_it():
    left = example_plan()
    right = example_plan(objective_s=0.5, step_time_s={"compute": 0.4, "exposed_comm": 0.1, "bubble": 0.0})
    whole, *parts = differences(left, right).time_s
    assert whole.right - whole.left == pytest.approx(0.088)
    assert sum(part.right for part in parts) == pytest.approx(whole.right)


def test_what_is_placed_and_kept_differently_is_named():
    changed = {"lm_head.weight": {"dp": "R", "tp": "R"}}
    left = example_plan()
    right = example_plan(placements={**left.placements, **changed}, storage={**left.storage, **changed})
    found = differences(left, right)
    assert [(d.what, d.left, d.right) for d in found.placements] == [("lm_head.weight", "tp:S(0)", "R")]
    assert [d.what for d in found.storage] == ["lm_head.weight"]


def test_settings_that_differ_are_named():
    found = differences(example_plan(), example_plan(num_microbatches=8, recompute={"layer": "none"}))
    assert [(d.what, d.left, d.right) for d in found.settings] == [
        ("num microbatches", "4", "8"), ("recompute", "layer full", "layer none"),
    ]  # fmt: skip


def test_traffic_is_priced_by_the_cluster_of_each_plan():
    sent = [{"kind": "all_reduce", "axis": "tp", "bytes": 10**8, "count": 3, "where": "layer", "phase": "forward"}]
    left, right = example_plan(collectives=sent), example_plan(collectives=[])
    (row,) = differences(left, right).traffic
    cluster = Cluster.from_dict(left.cluster)
    group = axis_groups([("dp", 2), ("tp", 4)], cluster)["tp"]
    one_s = collective_s("all_reduce", 10**8, group, cluster, CostProfile())
    assert (row.left_bytes, row.right_bytes, row.right_s) == (3 * 10**8, 0, 0.0)
    assert row.left_s == pytest.approx(3 * one_s)

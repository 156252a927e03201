"""What would change a plan: each answer is that of a fresh search under the change."""

from __future__ import annotations

import pytest

import autopar
from autopar.errors import InfeasibleError, UsageError
from autopar.models import resolve
from autopar.what_if import Change, ask, changed

CLUSTER = "2x4xA100-SXM-80GB"
SIZES = {"layers": 2, "seq_len": 64}


def planned(batch_size: int = 32, **options):
    found = resolve("zoo:gpt2", batch_size=batch_size, **SIZES)
    sizes = {"batch_size": batch_size, **SIZES}
    asked = {"cluster": CLUSTER, "memory_budget": "2GB", "name": found.name, "sizes": sizes, **options}
    return autopar.plan(found.model, found.example_inputs, **asked)


@pytest.fixture(scope="module")
def plan():
    return planned()


def answer(plan, *changes: str, **more):
    return ask(plan, [Change.parse(text) for text in changes], **more)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ("memory=+1GB", {"memory_budget": "3GB"}),
        ("memory=4GB", {"memory_budget": "4GB"}),
        pytest.param("bandwidth.inter=10Gb/s", {"cluster": "2x4xA100-SXM-80GB@10Gb/s"}, marks=pytest.mark.slow),
        ("devices=4", {"cluster": "1x4xA100-SXM-80GB"}),
        pytest.param("devices=4x8xH100-SXM", {"cluster": "4x8xH100-SXM"}, marks=pytest.mark.slow),
        ("batch=64", {"batch_size": 64}),
    ],
)
def test_the_answer_is_that_of_a_fresh_search(plan, change, options):
    assert answer(plan, change).to_bytes() == planned(**options).to_bytes()


@pytest.mark.slow
def test_another_link_inside_the_node_is_a_profile_with_that_link(plan, tmp_path):
    (tmp_path / "builtin.toml").write_text("[link.nvlink3]\nbandwidth_gb_s = 20\n")
    found = answer(plan, "bandwidth.intra=20GB/s")
    wanted = planned(profile=str(tmp_path / "builtin.toml"))
    assert found.profile.sha256 == wanted.profile.sha256 != plan.profile.sha256
    assert found.objective_s == wanted.objective_s


def test_several_changes_are_made_together(plan):
    both = answer(plan, "memory=+1GB", "devices=1x4xA100-SXM-80GB")
    assert both.to_bytes() == planned(memory_budget="3GB", cluster="1x4xA100-SXM-80GB").to_bytes()


@pytest.mark.slow
def test_a_change_that_leaves_too_little_memory_is_infeasible(plan):
    with pytest.raises(InfeasibleError):
        answer(plan, "memory=-1990MB")


@pytest.mark.parametrize("text", ["", "memory", "memory=", "speed=2", "=1"])
def test_what_is_no_change_is_answered_with_the_forms(text):
    with pytest.raises(UsageError, match=r"memory=\+16GiB"):
        Change.parse(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("memory=-3GB", "nothing would be left of the 2 GB"),
        ("memory=+lots", "is not a size"),
        ("devices=7", "do not fill nodes of 4"),
        ("devices=0", "do not fill"),
        ("batch=none", "a batch is a number"),
        ("bandwidth.inter=fast", "is not a rate"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_change(text, problem):
    keywords = {"cluster": autopar.Cluster.parse(CLUSTER), "memory_budget": 2 * 10**9, "sizes": {}}
    with pytest.raises(UsageError, match=problem) as caught:
        changed(keywords, [Change.parse(text)])
    assert f"--what-if {text}" in str(caught.value)


def test_a_batch_needs_a_model_that_can_be_built(plan):
    nameless = plan.model_copy(update={"model": "GPT2LMHeadModel"})
    with pytest.raises(UsageError, match="--model"):
        answer(nameless, "batch=64")

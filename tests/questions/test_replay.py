"""A plan holds its model: what is asked of it needs the file alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import autopar
from autopar.arguments import check
from autopar.compiling import ready
from autopar.errors import FileFormatError, MismatchError
from autopar.finding import find_plan
from autopar.ir.plan import Plan
from autopar.ir.text import print_graph
from autopar.models import resolve
from autopar.passes.origin import model_of, origin_of
from autopar.replay import keywords_of, prepared_of, program_of

CLUSTER = "1x4xH100-SXM"
NAMES = ("gpt2", "t5-large", "resnet50-100k")


def planned(name: str = "gpt2", **options: Any) -> Plan:
    layers = {} if "resnet" in name else {"layers": 2}
    found = resolve(f"zoo:{name}", batch_size=16, **layers)
    return autopar.plan(found.model, found.example_inputs, cluster=CLUSTER, name=found.name, **options)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned()


@pytest.mark.parametrize("name", NAMES)
def test_a_model_written_and_read_is_the_same(name):
    layers = {} if "resnet" in name else {"layers": 3}
    found = resolve(f"zoo:{name}", batch_size=16, **layers)
    arguments = check(cluster=CLUSTER, mixed_precision="bf16")
    model = ready(found.model, found.example_inputs, arguments).model
    types = {fqn: f"{p.dtype}[{','.join(map(str, p.shape))}]" for fqn, p in model.parameters.items()}
    again = model_of(origin_of(model), types, model.settings)
    assert again == dataclasses.replace(model, parameters=again.parameters)
    for fqn, stored in model.parameters.items():
        trainable = stored.trainable and not stored.buffer
        assert again.parameters[fqn] == dataclasses.replace(stored, trainable=trainable)
    sources = [[node.source for node in graph.nodes] for graph in (*model.graph.blocks, model.graph)]
    assert sources == [[node.source for node in graph.nodes] for graph in (*again.graph.blocks, again.graph)]


def test_asking_the_same_again_gives_the_same_plan(plan):
    arguments = check(**keywords_of(plan))
    again, _ = find_plan(prepared_of(plan, arguments), arguments)
    assert again.to_bytes() == plan.to_bytes()


def test_what_was_pinned_is_asked_again():
    made = planned(mesh={"pp": 2, "dp": -1}, num_microbatches=4, zero=1, memory_budget="20GB", schedule="gpipe")
    pinned = Plan.from_bytes(made.to_bytes())
    assert list(keywords_of(pinned)["mesh"]) == ["pp", "dp"]
    arguments = check(**keywords_of(pinned))
    assert find_plan(prepared_of(pinned, arguments), arguments)[0].to_bytes() == pinned.to_bytes()


def test_the_program_of_a_saved_plan_is_that_of_the_search(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    program, pipeline, _ = program_of(Plan.load(tmp_path / "plan.json"))
    found = resolve("zoo:gpt2", batch_size=16, layers=2)
    arguments = check(cluster=CLUSTER, name="zoo:gpt2")
    _, wanted = find_plan(ready(found.model, found.example_inputs, arguments), arguments)
    assert (print_graph(program.graph), program.parameters, pipeline) == (
        print_graph(wanted.graph), wanted.parameters, None,
    )  # fmt: skip


def test_the_stages_of_a_pipeline_come_with_its_program():
    program, pipeline, _ = program_of(planned(mesh={"pp": 2, "dp": 2}, num_microbatches=4))
    assert pipeline is not None and len(pipeline.stages) == 2
    assert program.microbatches == 4


def test_a_plan_of_an_older_version_says_that_it_keeps_no_graph(plan):
    older = plan.model_copy(update={"origin": None})
    with pytest.raises(MismatchError, match="does not hold the graph"):
        program_of(older)


def test_a_plan_without_the_later_fields_keeps_its_bytes(plan):
    older = plan.model_copy(update={"origin": None, "asked": None})
    assert b'"origin"' not in older.to_bytes() and b'"asked"' not in older.to_bytes()
    assert Plan.from_bytes(older.to_bytes()).origin is None


def test_another_profile_than_the_plan_was_priced_with_is_refused(plan, tmp_path):
    (tmp_path / "slow.toml").write_text("[device.H100-SXM]\nbf16_tflops = 1\n")
    with pytest.raises(MismatchError, match="was priced with profile builtin"):
        keywords_of(plan, profile=str(tmp_path / "slow.toml"))


def test_a_graph_that_was_changed_by_hand_is_refused(plan):
    assert plan.origin is not None
    broken = plan.origin.model_copy(update={"graph": plan.origin.graph.replace("aten.", "atten.", 1)})
    with pytest.raises((MismatchError, FileFormatError, autopar.errors.AutoparError)):
        program_of(plan.model_copy(update={"origin": broken}))

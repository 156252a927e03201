"""A program on a simulated mesh computes what the model computes on one device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from autopar.ir.errors import VerificationError
from autopar.ir.graph import Node
from autopar.runtime.parameters import names_of, whole_of
from autopar.runtime.parity import compare
from autopar.runtime.simulate import Simulated, simulate
from tests.runtime.programs import Model, batch, program

CASES: list[dict[str, Any]] = [
    {},
    {"tp": 2},
    {"dp": 2},
    {"dp": 2, "zero": 3},
    {"dp": 2, "tp": 2, "zero": 3},
    {"microbatches": 2},
    {"dp": 2, "tp": 2, "microbatches": 2},
    {"dp": 2, "tp": 4, "microbatches": 4, "zero": 3},
    {"dp": 2, "cp": 2, "tp": 2},
    {"dp": 2, "tp": 2, "graph_owned": True, "microbatches": 2},
]


def reference() -> Simulated:
    model = Model()
    loss, h = model(**batch())
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return Simulated(loss=loss.detach(), outputs=(loss.detach(), h.detach()), gradients=gradients)


def run(case: dict[str, Any], **options: Any) -> Simulated:
    model = Model()
    made = program(**case)
    whole = whole_of(model)
    return simulate(made, batch(), {p.fqn: whole(p.fqn) for p in made.parameters}, **options)


def check(found: Simulated, expected: Simulated) -> None:
    assert found.loss is not None and expected.loss is not None
    compare({"loss": found.loss}, {"loss": expected.loss}, tol=1e-10, what="loss")
    compare({"h": found.outputs[1]}, {"h": expected.outputs[1]}, tol=1e-10, what="outputs")
    compare(found.gradients, expected.gradients, tol=1e-10, what="gradients")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_simulated_program_equals_the_model(case: dict[str, Any]) -> None:
    """Loss, output and every gradient, with uneven counts of valid targets on the ranks."""
    check(run(case), reference())


def equivalent(node: Node) -> str | None:
    """Why leaving this conversion out, or averaging in it, changes nothing."""
    if node.attr("reduce") == "max":
        return "any shift of the logits that all classes share gives the same loss"
    return None


def mutants() -> list[tuple[str, str]]:
    made = program(dp=2, tp=2, microbatches=2)
    found = []
    for graph in (made.graph, *made.graph.blocks, made.prologue):
        assert graph is not None
        for node in graph.nodes:
            if node.target.startswith("comm.") and equivalent(node) is None:
                found.append((f"{graph.name}/{node.result.name}", "drop"))
                if "all_reduce" in (node.target.removeprefix("comm."), node.attr("backward")):
                    found.append((f"{graph.name}/{node.result.name}", "drop backward"))
    return found


@pytest.mark.parametrize(("where", "how"), mutants())
def test_a_missing_conversion_is_noticed(where: str, how: str) -> None:
    """Each collective, forward or backward, carries weight: without it something differs."""
    graph_name, _, value = where.partition("/")
    made = program(dp=2, tp=2, microbatches=2)
    graphs = {
        graph.name: graph for graph in (made.graph, *made.graph.blocks, made.prologue) if graph is not None
    }
    target = graphs[graph_name].producers()[value]

    def mutation(node: Node) -> Node | None:
        if node.result != target.result or node.target != target.target or node.operands != target.operands:
            return node
        if how == "drop":
            return None
        return node.with_attrs(backward="none") if node.attr("backward") == "all_reduce" else None

    with pytest.raises((VerificationError, RuntimeError)):
        check(run({"dp": 2, "tp": 2, "microbatches": 2}, mutation=mutation), reference())


def test_replicas_that_differ_are_refused() -> None:
    """A gradient that each device of tp computes a part of, declared whole."""
    with pytest.raises(VerificationError, match="axis tp"):
        run(
            {"tp": 2},
            mutation=lambda node: node.with_attrs(backward="none") if node.attr("axis") == "tp" else node,
        )


def test_frozen_parameter_has_no_gradient() -> None:
    made = program(tp=2)
    frozen = tuple(replace(p, trainable=p.fqn != "layers.1.fc1.weight") for p in made.parameters)
    whole = whole_of(Model())
    found = simulate(replace(made, parameters=frozen), batch(), {p.fqn: whole(p.fqn) for p in frozen})
    assert set(reference().gradients) - set(found.gradients) == {"layers.1.fc1.weight"}


def test_ties_are_found_by_identity() -> None:
    assert names_of(Model()).aliases == {"head.weight": "embed.weight"}


def test_compare_names_the_first_tensor_that_differs() -> None:
    good = {"a": torch.ones(2), "b": torch.ones(2)}
    with pytest.raises(VerificationError, match=r"gradients: b differs by 0\.5,"):
        compare({"a": good["a"], "b": torch.full((2,), 1.5)}, good, tol=1e-6, what="gradients")
    with pytest.raises(VerificationError, match="b differs by nan"):
        compare({"a": good["a"], "b": torch.full((2,), float("nan"))}, good, tol=1e-6, what="gradients")

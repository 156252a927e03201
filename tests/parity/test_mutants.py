"""Every collective of a lowered program carries weight: without it, or with a mean for a sum, parity fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from autopar.ir.errors import VerificationError
from autopar.ir.graph import Node
from autopar.ir.program import MICROBATCH_AXIS, Program
from autopar.ir.text import print_node
from autopar.runtime import simulate as simulator
from autopar.runtime.moves import TwoWay, of_node
from tests.lowered import all_graphs, comms, names_of
from tests.parity.planned import Case, check, planned, reference, run

CASES = [
    Case(model="llama", mesh="dp=2,tp=2", microbatches=2),
    Case(model="gpt2", mesh="tp=2"),
    Case(model="bert", mesh="cp=2"),
]
SLOW = [
    Case(model="gpt2", mesh="dp=2,cp=2", microbatches=2),
    Case(model="bert", mesh="tp=4", microbatches=2, network="free"),
    Case(model="llama", mesh="dp=2,tp=2", zero=3, network="free"),
]
SUMS = ("all_reduce", "reduce_scatter")
BACKWARD_MEAN = "mutant"


class Mutant(NamedTuple):
    """``parameter``: names behind the value that the conversion starts from, if it is a parameter."""

    node: Node
    how: str
    parameter: tuple[str, ...]


def mutants(program: Program) -> Iterator[Mutant]:
    for graph in all_graphs(program):
        producers = graph.producers()
        for node in comms([graph]):
            start = producers[next(node.uses())]
            names = tuple(names_of(program, graph, start)) if start.target == "param" else ()
            yield Mutant(node, "drop", names)
            if node.attr("backward") in SUMS:
                yield Mutant(node, "drop backward", names)
                yield Mutant(node, "mean backward", names)
            if node.target.removeprefix("comm.") in SUMS:
                yield Mutant(node, "mean", names)


def equivalent(mutant: Mutant, model: str) -> str | None:
    """Why this mutant computes the same, or None if it must be caught."""
    if mutant.node.attr("reduce") == "max" and mutant.how == "mean":
        return "any number that all classes share may be taken from the logits"
    gradients = reference(model, 1)[1]
    if mutant.parameter and all(float(gradients[name].abs().max()) < 1e-12 for name in mutant.parameter):
        if mutant.node.attr("axis") in ("dp", MICROBATCH_AXIS):
            return "a gradient that is zero in exact arithmetic (a bias of the keys) is zero on each part of the batch"
        if mutant.how == "mean backward":
            return "its parts over the sequence add up to zero, and so does their mean"
    return None


def mutated(mutant: Mutant, node: Node) -> Node | None:
    if node.results != mutant.node.results or node.operands != mutant.node.operands:
        return node
    if mutant.how == "drop":
        return None
    if mutant.how == "mean":
        return node.with_attrs(reduce="mean")
    if mutant.how == "mean backward":
        return node.with_attrs(**{BACKWARD_MEAN: True})
    return node.with_attrs(backward="none") if node.target == "comm.identity" else _forward_only(node)


def _forward_only(node: Node) -> Node:
    return node.with_attrs(backward="identity")


@pytest.fixture(autouse=True)
def _means_in_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """The IR cannot say "mean" of a backward reduction: teach the simulator."""

    def read(node: Node) -> TwoWay:
        found = of_node(node)
        back = replace(found.backward, reduce="mean") if node.attr(BACKWARD_MEAN) else found.backward
        return replace(found, backward=back)

    monkeypatch.setattr(simulator, "of_node", read)


def one_of_each_kind(mutants: Iterator[Mutant]) -> Iterator[Mutant]:
    known: set[object] = set()
    for mutant in mutants:
        node = mutant.node
        kind = node.target, *map(node.attr, ("axis", "backward", "reduce")), mutant.how, bool(mutant.parameter)
        if kind not in known:
            known.add(kind)
            yield mutant


@pytest.mark.parametrize(
    ("case", "every"),
    [
        *(pytest.param(case, case != CASES[0], id=str(case)) for case in CASES),
        *(pytest.param(case, True, id=f"{case}-every", marks=pytest.mark.slow) for case in (CASES[0], *SLOW)),
    ],
)  # fmt: skip
def test_every_mutant_is_caught(case: Case, *, every: bool) -> None:
    """Each conversion left out, forward or backward, and each sum turned into a mean."""
    plan = planned(case)
    check(run(plan), case.model, 1)
    survivors = []
    tried = 0
    for mutant in mutants(plan.program) if every else one_of_each_kind(mutants(plan.program)):
        if equivalent(mutant, case.model) is not None:
            continue
        tried += 1
        try:
            check(run(plan, mutation=lambda node, mutant=mutant: mutated(mutant, node)), case.model, 1)
        except (
            VerificationError,
            RuntimeError,
            IndexError,
            ValueError,
        ):  # torch refuses shapes and ids that do not fit
            continue
        survivors.append(f"{mutant.how}: {print_node(mutant.node)}")
    assert not survivors, "\n".join(survivors)
    assert tried >= 10


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equivalent_mutants_really_are(case: Case) -> None:
    """What is listed as equivalent is not just hard to catch."""
    plan = planned(case)
    for mutant in mutants(plan.program):
        if equivalent(mutant, case.model) is not None:
            check(run(plan, mutation=lambda node, mutant=mutant: mutated(mutant, node)), case.model, 1)

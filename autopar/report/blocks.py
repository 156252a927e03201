"""The model as it was folded: each repeated block once, with how its calls are trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autopar.cli.plan_view import REST
from autopar.ir.plan import Plan
from autopar.report.bars import Part, bar
from autopar.report.svg import Svg

SHADES = 4


@dataclass(frozen=True, kw_only=True)
class Run:
    """Calls one after the other that are trained alike."""

    count: int
    words: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class Block:
    name: str
    count: int
    nodes: int
    runs: tuple[Run, ...]
    drawing: Svg


@dataclass(frozen=True, kw_only=True)
class Stage:
    """``where``: in the model's words; empty for the first."""

    place: str
    where: str


def blocks(plan: Plan) -> tuple[Block, ...]:
    """The rest of the model first, in which the others are called."""
    rest = _words(plan.zero.get("", 0), plan.recompute.get("", "none"))
    known = sum(each.nodes for each in plan.blocks)
    outside = Block(
        name=REST, count=1, nodes=max(0, plan.graph.folded_nodes - known),
        runs=(Run(count=1, words=rest, kind="run0"),), drawing=_strip(REST, (Run(count=1, words=rest, kind="run0"),)),
    )  # fmt: skip
    found = [outside]
    for each in plan.blocks:
        runs = tuple(_runs(plan, each.name, each.count))
        found.append(Block(
            name=each.name, count=each.count, nodes=each.nodes, runs=runs, drawing=_strip(each.name, runs),
        ))  # fmt: skip
    return tuple(found)


def stages(plan: Plan) -> tuple[Stage, ...]:
    """Where each pipeline stage begins; none without a pipeline."""
    if not plan.stages:
        return ()
    places = plan.mesh.get("pp", 1)
    begins = ["", *(each.where for each in plan.stages)]
    return tuple(
        Stage(place=f"stage {number}, place {number % places}", where=where) for number, where in enumerate(begins)
    )


def _runs(plan: Plan, name: str, count: int) -> Iterator[Run]:
    """Calls of a block in order. A plan that does not say call by call has one run."""
    variants = plan.assignment.variants
    merged: list[tuple[int, str]] = []
    for called in plan.assignment.calls.values():
        for repeat, index in called:
            if variants[index].graph == name:
                words = _words(variants[index].zero, variants[index].recompute)
                if merged and merged[-1][1] == words:
                    merged[-1] = (merged[-1][0] + repeat, words)
                else:
                    merged.append((repeat, words))
    merged = merged or [(count, _words(plan.zero.get(name, 0), plan.recompute.get(name, "none")))]
    distinct = list(dict.fromkeys(words for _, words in merged))
    for repeat, words in merged:
        yield Run(count=repeat, words=words, kind=f"run{distinct.index(words) % SHADES}")


def _words(zero: int, recompute: str) -> str:
    again = {"none": "nothing recomputed", "selective": "selective recomputation", "full": "full recomputation"}
    return f"ZeRO {zero}, {again.get(recompute, recompute)}"


def _strip(name: str, runs: tuple[Run, ...]) -> Svg:
    total = sum(run.count for run in runs) or 1
    parts = [Part(share=run.count / total, kind=run.kind, title=f"{run.count} × {run.words}") for run in runs]
    return bar(f"{name}: {'; '.join(part.title for part in parts)}", parts)

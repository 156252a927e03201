"""A plan's pipeline stages in the program of the model's other mode.

Operations of the two lowered programs are paired in order, instance by instance, as ``other_mode.py`` pairs those of
the models. Each stage then begins between the last operation whose partner stands before it and the first whose
partner does not; operations without a partner stand where the parameters that they read are held.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autopar.ir.errors import UnsupportedError
from autopar.ir.graph import SOURCES, Graph, Node
from autopar.ir.pipeline import Mark, Stage
from autopar.ir.program import Program
from autopar.ir.recompute import is_comm
from autopar.passes.align import align
from autopar.passes.stages import belongs, cut, dependence, depends_on_inputs, live_for, placed, stored


@dataclass(frozen=True, slots=True)
class _Operation:
    """``mark``: the node, or the call that it stands in. ``begins``: a stage may begin right before it.

    ``reads``: parameters and buffers that it reads, through conversions too.
    """

    mark: Mark
    begins: bool
    key: Hashable
    reads: frozenset[str]


def cut_alike(
    planned: Program, marks: Sequence[Mark], program: Program, constants: Collection[str]
) -> tuple[Stage, ...]:
    """The stages of ``program``, each on the tensors that the same stage of ``planned`` holds.

    Requires: ``planned`` was cut at ``marks``; both programs have a loss. ``constants`` of ``program`` are at hand
    in every stage. Raises UnsupportedError where a stage would begin inside of a call of a block, or would need a
    parameter that it does not hold.
    """
    held = [{p.fqn for p in stage.program.parameters} for stage in cut(planned, marks)]
    found = _marks(_with_stages(planned, marks), _operations(program.graph, _live(program)), held)
    stages = cut(program, found)
    for index, stage in enumerate(stages):
        for graph in (stage.program.graph, stage.program.prologue):
            missing = sorted((stored(graph) if graph else set()) - held[index] - set(constants))
            if missing:
                raise UnsupportedError(f"stage {index} would need {missing[0]}, which other stages hold")
    return stages


def _live(program: Program) -> tuple[Node, ...]:
    assert program.loss is not None
    return live_for(program.graph, program.loss).nodes


def _with_stages(program: Program, marks: Sequence[Mark]) -> list[tuple[_Operation, int]]:
    """The operations of the plan's program, and the stage in which each stands."""
    nodes, stage_of = placed(_live(program), marks)
    at = {node.results[0].name: stage for node, stage in zip(nodes, stage_of, strict=True)}
    return [(operation, at[operation.mark.node]) for operation in _operations(program.graph, nodes)]


def _marks(
    theirs: Sequence[tuple[_Operation, int]], operations: Iterator[_Operation], held: Sequence[set[str]]
) -> list[Mark]:
    ours = list(operations)
    spans = _spans(theirs, ours, held)
    found, begun = [], 0
    for stage in range(1, len(held)):
        after = max((at + 1 for at, (_, most) in enumerate(spans) if most < stage), default=0)
        before = min((at for at, (least, _) in enumerate(spans) if least >= stage), default=len(ours) - 1)
        if after > before:
            missing = sorted(ours[after - 1].reads - held[stage]) or sorted(ours[before].reads - held[stage - 1])
            raise UnsupportedError(f"one stage would need {', '.join(missing[:1])}, which another holds")
        places = (at for at in range(before, max(after, begun + 1) - 1, -1) if ours[at].begins)
        begun = next(places, -1)
        if begun < 0:
            raise UnsupportedError(f"stage {stage} would begin inside of a layer that runs as one of equal ones")
        found.append(ours[begun].mark)
    return found


def _spans(
    theirs: Sequence[tuple[_Operation, int]], ours: Sequence[_Operation], held: Sequence[set[str]]
) -> list[tuple[int, int]]:
    """The first and the last stage in which each of our operations may stand."""
    pairs = align([operation.key for operation, _ in theirs], [operation.key for operation in ours])
    found = []
    for at, operation in enumerate(ours):
        if at in pairs:
            stage = theirs[pairs[at]][1]
            found.append((stage, stage))
            continue
        able = [stage for stage, names in enumerate(held) if operation.reads <= names]
        found.append((min(able, default=0), max(able, default=len(held) - 1)))
    return found


def _operations(graph: Graph, nodes: Sequence[Node]) -> Iterator[_Operation]:
    """Every operation that stands in one stage, as often as it runs, in order. Partners have equal keys.

    Collectives are left out: where the two programs have different neighbours, they have different ones.
    """
    depends = dependence(nodes)
    reads: dict[str, frozenset[str]] = {}
    for node in nodes:
        name = node.results[0].name
        if node.target == "call":
            for index, slots in enumerate(_slots(node)):
                yield from _of_call(graph.block(str(node.attr("block"))), Mark(name, index), slots)
            continue
        if belongs(node, depends) and not is_comm(node):
            yield _operation(node, Mark(name), reads, begins=True)
        _note(node, depends, reads, ())


def _of_call(block: Graph, mark: Mark, slots: tuple[str, ...]) -> Iterator[_Operation]:
    depends = dependence(block.nodes)
    reads: dict[str, frozenset[str]] = {}
    first = True
    for node in block.nodes:
        if node.target not in SOURCES and depends_on_inputs(node, depends) and not is_comm(node):
            yield _operation(node, mark, reads, begins=first)
            first = False
        _note(node, depends, reads, slots)


def _operation(node: Node, mark: Mark, reads: Mapping[str, frozenset[str]], *, begins: bool) -> _Operation:
    names = frozenset[str]().union(*(reads.get(name, ()) for name in node.uses()))
    key = node.target, tuple(str(value.type) for value in node.results), tuple(sorted(names))
    return _Operation(mark=mark, begins=begins, key=key, reads=names)


def _note(
    node: Node, depends: dict[str, int], reads: dict[str, frozenset[str]], slots: tuple[str, ...]
) -> None:
    """What is behind a value that depends on no input."""
    if node.target in ("param", "buffer"):
        slot = node.attr("slot")
        reads[node.result.name] = frozenset([slots[slot] if isinstance(slot, int) else str(node.attr("fqn"))])
    elif not depends_on_inputs(node, depends):
        behind = frozenset[str]().union(*(reads.get(name, ()) for name in node.uses()))
        reads.update((value.name, behind) for value in node.results)


def _slots(call: Node) -> list[tuple[str, ...]]:
    params = call.attr("params")
    assert isinstance(params, tuple)
    return [tuple(map(str, names)) for names in params if isinstance(names, tuple)]

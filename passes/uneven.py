"""Let data-parallel ranks run unequal numbers of microbatches: what that needs of a lowered program.

Ranks that run a program a different number of times cannot meet in it. So nothing may be exchanged over ``dp`` within
a microbatch, and every value must be split over ``dp`` and ``mb`` alike, so that any rank can run any microbatch of the
whole batch: the two are one axis (``ir/program.py``). The loss alone crosses them: its sum waits for the step's end.
So do all sums of gradients. What each rank computes alike from parameters alone, such as positions, would return a
whole gradient; left a part, it makes a part of the gradient of every parameter behind it, which the runtime adds up as
it does all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autopar.ir.errors import UnsupportedError
from autopar.ir.graph import Graph, Node, renamed
from autopar.ir.layout import Layout, Partial, Replicate, Shard
from autopar.ir.live import live
from autopar.ir.program import DATA_AXIS, MICROBATCH_AXIS, Program
from autopar.ir.verify import verify
from autopar.passes.positions import all_graphs

_UNITS = (DATA_AXIS, MICROBATCH_AXIS)


def uneven(program: Program, shares: Sequence[int]) -> Program:
    """The program with ``shares[r]`` microbatches for data-parallel rank r, its loss a rank's summand, the only output.

    Requires: a lowered program with microbatches. Raises UnsupportedError naming what ties ranks together.
    """
    graph = _sums_later(_loss_apart(program))
    given = () if program.prologue is None else program.prologue.outputs
    for part in all_graphs(graph):
        for node in part.nodes:
            problem = _problem(node, given)
            if problem:
                where = f"{node.source or node.results[0].name}: {node.target}"
                raise UnsupportedError(
                    f"{where} {problem}, so data-parallel ranks cannot take unequal shares of the batch; use "
                    "num_microbatches=1 for equal ones"
                )
    verify(graph, after="uneven")
    used = {str(n.attr("fqn")) for n in graph.sources("param")}
    used.update(name for n in graph.nodes if n.target == "call" for name in _slots(n))
    data: tuple[str, ...] = (DATA_AXIS,)
    parameters = tuple(
        replace(p, runtime_axes=data if p.type.shape else (), step_axes=() if p.type.shape else data)
        if p.trainable and p.fqn in used else p
        for p in program.parameters
    )
    return replace(program, graph=graph, parameters=parameters, loss=graph.outputs[0], shares=tuple(shares))


def exchanged_once(program: Program) -> tuple[tuple[str, int], ...]:
    """(kind, bytes of a rank) of what ranks of unequal shares exchange once a step besides gradients.

    The loss, and what the prologue reads, of which each rank is given as much as of equal shares.
    """
    values = program.graph.values()
    assert program.loss is not None
    read = () if program.prologue is None else program.prologue.sources("input")
    split = [node.result for node in read if node.result.layout and isinstance(node.result.layout[DATA_AXIS], Shard)]
    return (
        *(("all_to_all", value.type.nbytes // program.mesh.size(DATA_AXIS)) for value in split),
        ("all_reduce", values[program.loss].type.nbytes),
    )


def _loss_apart(program: Program) -> Graph:
    """The main graph without the sums of its loss over ranks and microbatches."""
    assert program.loss is not None
    producers, at = program.graph.producers(), program.loss
    behind: list[Node] = []
    renames: dict[str, str] = {}
    while producers[at].target.startswith("comm."):
        behind.append(producers[at])
        at = next(producers[at].uses())
    nodes = {node.results[0].name: node for node in program.graph.nodes}
    for node in reversed(behind):
        name, operand = node.results[0].name, next(node.uses())
        if node.target == "comm.all_reduce" and node.attr("axis") in _UNITS and node.attr("reduce", "sum") == "sum":
            renames[name] = renames.get(operand, operand)
            del nodes[name]
        else:
            nodes[name] = _over_summands(renamed(node, renames))
    graph = replace(program.graph, nodes=tuple(nodes.values()), outputs=(renames.get(program.loss, program.loss),))
    return live(graph)


def _sums_later(graph: Graph) -> Graph:
    """The graph and its blocks without sums of gradients over ranks: the runtime has them all."""

    def later(part: Graph) -> Graph:
        nodes = [node.with_attrs(owner="runtime") if _adds_gradients(node) else node for node in part.nodes]
        return replace(part, nodes=tuple(nodes), blocks=tuple(map(later, part.blocks)))

    return later(graph)


def _adds_gradients(node: Node) -> bool:
    return node.target == "comm.identity" and node.attr("axis") == DATA_AXIS and node.attr("owner") != "runtime"


def _slots(call: Node) -> Iterator[str]:
    """The names of all parameters of a call's instances."""
    params = call.attr("params")
    for names in params if isinstance(params, tuple) else ():
        yield from map(str, names if isinstance(names, tuple) else ())


def _over_summands(node: Node) -> Node:
    """A conversion of the loss on another axis, before the sums over ranks and microbatches instead of behind them."""
    (result,) = node.results
    layout = result.layout
    assert layout is not None
    for axis in _UNITS:
        layout = layout.replace(axis, Partial())
    return replace(node, results=(replace(result, layout=layout),))


def _problem(node: Node, given: Sequence[str]) -> str:
    """Why a microbatch cannot run on any rank; empty if it can. ``given``: by the prologue."""
    if node.target.startswith("comm.") and node.attr("axis") in _UNITS and node.attr("owner") is None:
        return f"exchanges values over {node.attr('axis')} in every microbatch"
    starts = node.attr("start")
    if isinstance(starts, tuple) and any(isinstance(start, tuple) and start[0] in _UNITS for start in starts):
        return f"begins where the rank along {DATA_AXIS} says"
    for value in node.results:
        if value.layout is None:
            continue
        if not _together(value.layout):
            return f"gives {value.name} {value.layout}, not split over {DATA_AXIS} and microbatches alike"
        if node.target == "input" and node.attr("name") in given and not isinstance(value.layout[DATA_AXIS], Replicate):
            return "is computed once a step and cut into parts for ranks and microbatches afterwards"
    return ""


def _together(layout: Layout) -> bool:
    """Whether the two axes are as one: both whole, both summands, or one behind the other in the same dim."""
    first, second = (layout[axis] for axis in _UNITS)
    if isinstance(first, Replicate) and isinstance(second, Replicate):
        return True
    if isinstance(first, Shard) and isinstance(second, Shard):
        return first.dim == second.dim and second.outer == first.outer * layout.mesh.size(DATA_AXIS)
    return first == second

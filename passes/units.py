"""What each part of a solved model costs, in the order of its lowered graph, for cutting it into pipeline stages.

The tables of the root belong to the node at which their last variable is decided, those of a block to each call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from autopar.ir.calls import carried, collected
from autopar.ir.graph import SOURCES, Graph
from autopar.ir.pipeline import Mark
from autopar.ir.program import Program
from autopar.passes.build import Encoded, Model
from autopar.passes.pipelining import Unit
from autopar.passes.positions import flat_operands
from autopar.passes.pricing import local_bytes
from autopar.passes.problem import IntArray, Segment
from autopar.passes.repeated import Repeated, needs_of, reached, repeated_ns
from autopar.passes.segments import Variable
from autopar.passes.solve import Solution
from autopar.passes.solve.check import sums_of_instance
from autopar.passes.stages import belongs, dependence, live_for


@dataclass(frozen=True, kw_only=True)
class Cost:
    """``held``: bytes that do not depend on the number of microbatches in flight; ``saved``: those of one.

    ``parameters``: whose first use it is. ``repeated``: what stages that share it compute each for itself.
    """

    parameters: tuple[str, ...] = ()
    repeated: frozenset[Repeated] = frozenset()
    time_ns: int = 0
    held_bytes: int = 0
    saved_bytes: int = 0
    transient_bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            parameters=(*self.parameters, *other.parameters), repeated=self.repeated | other.repeated,
            time_ns=self.time_ns + other.time_ns,
            held_bytes=self.held_bytes + other.held_bytes,
            saved_bytes=self.saved_bytes + other.saved_bytes,
            transient_bytes=max(self.transient_bytes, other.transient_bytes),
        )  # fmt: skip


def units_of(
    model: Model, program: Program, solution: Solution, lean: Encoded, full: Encoded, *, anywhere: bool
) -> tuple[Unit, ...]:
    """The units of a lowered program.

    ``lean`` and ``full`` are its problem with nothing and with one microbatch saved. A stage may begin at each call of
    a block, and only if ``anywhere`` at every other node that belongs to one stage.
    """
    assert program.loss is not None
    graph = live_for(program.graph, program.loss)
    kept = {value.name for node in graph.nodes for value in node.results}
    repeated, shared = repeated_ns(model, lean, solution.root)
    reach = reached(graph, program.prologue)
    root = _at_nodes_of(kept, model.graph, _root_costs(model, solution, lean, full, shared))
    calls = {
        node.results[0].name: [call_cost(lean, full, index, values) for _, values in runs]
        for index, (node, runs) in enumerate(zip(lean.calls, solution.calls, strict=True))
    }
    found: list[tuple[Mark, Cost, int, bool]] = []
    first, depends = _first_uses(graph), dependence(graph.nodes)
    held: dict[str, Cost] = {}  # of what may be computed anywhere, for who is the first to use it
    for node, (entering, inside, more) in zip(graph.nodes, _entering(graph), strict=True):
        name = node.results[0].name
        if not belongs(node, depends):
            held[name] = root.pop(name, Cost())
            continue
        needs = needs_of(node, reach)
        ahead = sum((held.pop(one.value, Cost()) for one in sorted(needs)), Cost(repeated=needs))
        if node.target != "call":
            cost = Cost(parameters=first.get(name, ())) + ahead + root.pop(name, Cost())
            found.append((Mark(name), cost, entering, anywhere))
            continue
        base, _, run = name.rpartition(".run") if ".run" in name else (name, "", "-1")
        params = node.attr("params")
        assert isinstance(params, tuple)
        for call, names in enumerate(params):
            assert isinstance(names, tuple)
            own = Cost(parameters=(*first.pop(name, ()), *map(str, names))) + ahead
            cost, ahead = own + calls[base][int(run)] + root.pop(base, Cost()), Cost(repeated=needs)
            found.append((Mark(name, call), cost, inside + call * more if call else entering, True))
    return _joined(found, repeated)


def _first_uses(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Parameters of the main graph by the node that is first to use each: what converts one is computed wherever that
    stands."""
    depends = dependence(graph.nodes)
    held: dict[str, tuple[str, ...]] = {
        node.result.name: (str(node.attr("fqn")),) for node in graph.sources("param")
    }
    seen: set[str] = set()
    found: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        used = tuple(dict.fromkeys(fqn for name in node.uses() for fqn in held.get(name, ())))
        if belongs(node, depends):
            found[node.results[0].name] = tuple(fqn for fqn in used if fqn not in seen)
            seen.update(used)
        elif used:
            held.update((value.name, used) for value in node.results)
    return found


def _joined(found: Sequence[tuple[Mark, Cost, int, bool]], repeated: Mapping[Repeated, int]) -> tuple[Unit, ...]:
    """Parts at which no stage may begin go with the part before; those before the first such place with it."""
    groups: list[tuple[Mark, Cost, int]] = []
    ahead, opened = Cost(), False
    for mark, cost, entering, begins in found:
        if begins and opened:
            groups.append((mark, cost, entering))
        elif begins:
            groups.append((mark, ahead + cost, entering))
            opened = True
        elif opened:
            groups[-1] = (groups[-1][0], groups[-1][1] + cost, groups[-1][2])
        else:
            ahead = ahead + cost
    return tuple(
        Unit(mark=mark, time_ns=cost.time_ns, held_bytes=cost.held_bytes, saved_bytes=cost.saved_bytes,
             transient_bytes=cost.transient_bytes, entering_bytes=entering, parameters=cost.parameters,
             repeated_ns={one: repeated[one] for one in sorted(cost.repeated) if repeated.get(one)})
        for mark, cost, entering in groups
    )  # fmt: skip


def _entering(graph: Graph) -> list[tuple[int, int, int]]:
    """For each node the bytes that would come in if a stage began there; at a later one of its calls; and how many
    more of each call that is ahead of that."""
    depends = dependence(graph.nodes)
    made: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        if belongs(node, depends):
            made.update((value.name, index) for value in node.results)
            last.update((name, index) for name in node.uses() if name in made)
    sizes = {
        value.name: local_bytes(value.layout, value.type) for node in graph.nodes for value in node.results
        if value.layout is not None
    }  # fmt: skip
    ending: dict[int, list[str]] = {}
    for name, at in last.items():
        ending.setdefault(at, []).append(name)
    found, alive = [], 0
    for index, node in enumerate(graph.nodes):
        left = sum(sizes[name] for name in ending.get(index, ()))
        inside = more = 0
        if node.target == "call":
            handed = carried(node)
            again = [name for name in ending.get(index, ()) if name in node.operands[handed:]]
            inside = alive - left + sum(sizes[name] for name in again)
            inside += sum(sizes[value.name] for value in node.results[:handed])
            more = sum(sizes[value.name] for value in collected(node)[0] if value.name in last)
        found.append((alive, inside, more))
        alive += sum(sizes[value.name] for value in node.results if value.name in last) - left
    return found


def call_cost(lean: Encoded, full: Encoded, chain: int, values: tuple[int, ...]) -> Cost:
    """Of one call of a chain with these values."""
    segment = lean.problem.chains[chain].segment
    at = range(len(segment.tables))
    held = _sum(segment, "bytes", at, values)
    return Cost(
        time_ns=sums_of_instance(segment, values).time_ns, held_bytes=held,
        saved_bytes=_sum(full.problem.chains[chain].segment, "bytes", at, values) - held,
        transient_bytes=_sum(segment, "transient_bytes", at, values),
    )  # fmt: skip


def _root_costs(
    model: Model, solution: Solution, lean: Encoded, full: Encoded, shared: AbstractSet[int]
) -> dict[str, Cost]:
    """By the first result of each node of the main graph. Exposed traffic is spread over those who cause it.

    ``shared``: tables whose time is of what stages compute for themselves.
    """
    graph, segment, values = model.graph, lean.problem.root, solution.root
    places = places_of(graph, lean.variables[graph.name])
    tables: dict[int, list[int]] = {}
    for number, table in enumerate(segment.tables):
        tables.setdefault(max(places[variable] for variable in table.variables), []).append(number)
    moved = _moved_ns(segment, range(len(segment.tables)), values)
    exposed = sums_of_instance(segment, values).exposed_ns / max(1, moved)
    found = {}
    for place, numbers in sorted(tables.items()):
        held = _sum(segment, "bytes", numbers, values)
        own = _sum(segment, "sync_ns", [number for number in numbers if number not in shared], values)
        found[graph.nodes[max(place, 0)].results[0].name] = Cost(
            time_ns=own + round(exposed * _moved_ns(segment, numbers, values)), held_bytes=held,
            saved_bytes=_sum(full.problem.root, "bytes", numbers, values) - held,
            transient_bytes=_sum(segment, "transient_bytes", numbers, values),
        )  # fmt: skip
    return found


def _at_nodes_of(kept: AbstractSet[str], graph: Graph, costs: Mapping[str, Cost]) -> dict[str, Cost]:
    """Operations that lowering joins with a later one (the parts of a loss) are not in its graph: they cost there."""
    found: dict[str, Cost] = {}
    ahead = Cost()
    for node in graph.nodes:
        name = node.results[0].name
        ahead = ahead + costs.get(name, Cost())
        if name in kept:
            found[name], ahead = ahead, Cost()
    return found


def places_of(graph: Graph, variables: Sequence[Variable]) -> list[int]:
    """The node at which each variable is decided: a source and its hub at their first consumer."""
    at = {value.name: index for index, node in enumerate(graph.nodes) for value in node.results}
    first: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        for name in flat_operands(node):
            if name is not None:
                first.setdefault(name, index)
    sources = {node.result.name for target in SOURCES for node in graph.sources(target)}
    return [_place(variable, at, first, sources) for variable in variables]


def _place(variable: Variable, at: Mapping[str, int], first: Mapping[str, int], sources: set[str]) -> int:
    if variable.kind == "mode":
        return -1
    known = first if variable.name in sources else at
    return known.get(variable.name, -1)


def _moved_ns(segment: Segment, tables: Sequence[int], values: tuple[int, ...]) -> int:
    """What communication there is for computing to hide, whenever it is."""
    names = ("hide_ns", "earlier_ns", "ahead_ns")
    return sum(max(0, _sum(segment, name, [number], values)) for number in tables for name in names)


def _sum(segment: Segment, name: str, tables: Sequence[int], values: tuple[int, ...]) -> int:
    total = 0
    for number in tables:
        table = segment.tables[number]
        array: IntArray | None = getattr(table, name)
        if array is not None:
            total += int(array[tuple(values[variable] for variable in table.variables)])
    return total

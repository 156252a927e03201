"""What stands at the places of a pipeline beside calls, and what goes from one to the next: for bounds of every cut.

Stages begin at calls of blocks. So what runs before the first call stands at the first place, what runs behind the last
one at the last place, and each place works out for itself what its calls need of what is repeated (``repeated.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from autopar.ir.calls import carried
from autopar.ir.graph import Node
from autopar.ir.layout import Layout
from autopar.passes.build import Encoded, Model
from autopar.passes.live import segment_holding
from autopar.passes.pricing import local_bytes
from autopar.passes.problem import Segment, Table
from autopar.passes.repeated import anywhere, needs_of, reached
from autopar.passes.stages import belongs, dependence, live_for
from autopar.passes.units import places_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Ends:
    """Parts of the root: what is ``before`` the first call, ``behind`` the last one, and by chain what a place that has
    calls of it computes ``again``, the same object where it is the same. Each holds one microbatch."""

    before: Segment
    behind: Segment
    again: tuple[Segment, ...]

    def of(self, place: int, places: int, live: int) -> tuple[Segment, ...]:
        """What stands at a place that holds so many, by the chain that it has calls of."""
        if 0 < place < places - 1:
            return self.again
        return (segment_holding(self.behind if place else self.before, live),) * len(self.again)


def ends(model: Model, encoded: Encoded) -> Ends:
    """Time of all that stands there. Bytes of what stands nowhere else."""
    graph, root = model.graph, encoded.problem.root
    depends, reach = dependence(graph.nodes), reached(graph)
    calls = [at for at, node in enumerate(graph.nodes) if node.target == "call"]
    variables = encoded.variables[graph.name]
    decided, loose = places_of(graph, variables), anywhere(graph)
    last = [max(decided[variable] for variable in table.variables) for table in root.tables]
    own = [variables[table.variables[0]].name for table in root.tables]

    def needed(nodes: Iterable[Node]) -> set[str]:
        placed = (node for node in nodes if belongs(node, depends) and node.results[0].name in model.live)
        return {one.value for node in placed for one in needs_of(node, reach) if one.value in loose}

    def part(places: range, needs: AbstractSet[str]) -> Segment:
        tables = []
        for table, at, name in zip(root.tables, last, own, strict=True):
            if name in needs:
                tables.append(replace(table, bytes=None))
            elif name not in loose and at in places and belongs(graph.nodes[at], depends):
                tables.append(table)
        return _segment(root, tables)

    by_chain = [frozenset(needed([call])) for call in encoded.calls]
    again = {needs: part(range(0), needs) for needs in by_chain}
    return Ends(
        before=part(range(calls[0]), needed(graph.nodes[: calls[0] + 1])),
        behind=part(range(calls[-1] + 1, len(graph.nodes)), needed(graph.nodes[calls[-1] :])),
        again=tuple(again[needs] for needs in by_chain),
    )


@dataclass(frozen=True, kw_only=True)
class Handed:
    """Bytes that go from one stage to the next with a microbatch: the least, wherever the next one begins, and by the
    state in which a call hands over to the next where the model has one chain of them, else none."""

    least: int
    by_state: tuple[int, ...] = ()


def handed(model: Model, encoded: Encoded, parts: int) -> Handed:
    """What a call takes over from the one before it is handed over as the call has it; all else may be in as many
    ``parts``."""
    graph = live_for(model.graph, model.loss)
    depends = dependence(graph.nodes)
    kinds = {name: fact.type for (part, name), fact in model.facts.items() if part == graph.name}
    sizes: dict[str, list[int]] = {}
    least: dict[str, int] = {}
    for variable in encoded.variables[graph.name]:
        if variable.kind == "carried":
            name, layouts = variable.name, [value for value in variable.values if isinstance(value, Layout)]
            sizes[name] = [local_bytes(layout, kinds[name]) for layout in layouts]
            least[name] = min(*sizes[name], least.get(name, sizes[name][0]))
    made: dict[str, int] = {}  # least bytes of what belongs to a stage and is used later on
    last = {name: node.results[0].name for node in graph.nodes if belongs(node, depends) for name in node.uses()}
    found: list[int] = []
    states: tuple[int, ...] = ()
    for node in graph.nodes:
        if not belongs(node, depends):
            continue
        here = node.results[0].name
        later = {name: size for name, size in made.items() if last[name] != here}
        if node.target == "call":
            taken = node.operands[: carried(node)]
            found.append(sum(least[name] if name in taken else size for name, size in made.items()))
            if int(str(node.attr("count"))) > 1:
                beside = sum(size for name, size in made.items() if name in later or name not in taken)
                given = [value.name for value in node.results[: len(taken)]]
                states = tuple(beside + sum(each) for each in itertools.product(*(sizes[name] for name in given)))
                found.append(beside + sum(least[name] for name in given))
        later.update((value.name, kinds[value.name].nbytes // parts) for value in node.results if value.name in last)
        made = later
    return Handed(least=min(found[1:], default=0), by_state=states if len(encoded.calls) == 1 else ())


def _segment(root: Segment, tables: list[Table]) -> Segment:
    """Of these tables and no more variables than they have."""
    used = sorted({variable for table in tables for variable in table.variables})
    number = {variable: at for at, variable in enumerate(used)}
    return Segment(
        name=root.name, domains=tuple(root.domains[variable] for variable in used),
        tables=tuple(replace(table, variables=tuple(number[v] for v in table.variables)) for table in tables),
    )  # fmt: skip

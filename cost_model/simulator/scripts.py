"""What one lowered graph tells a device to do: forward, backward, and forward again where it is recomputed.

Backward is forward in reverse. A collective is waited for at once, but where heavy work stands between its operand
and its first use: there it is sent with the operand and waited for before the use, and its gradient the other way
round (``runtime/overlap.py``). Recomputation leaves out what runs once (``ir/recompute.py``), and ends as soon as
backward has what it needs: torch stops at the last operation that keeps something, before a product's kernel runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple, TypeAlias

from autopar.cost_model.dtypes import sent_back_bytes
from autopar.cost_model.priced import Group, each_way_bytes
from autopar.cost_model.simulator.gradients import RECEIVED, Gradients, flat
from autopar.cost_model.simulator.instructions import Collective, Move, Part, Post, Wait, Work
from autopar.cost_model.simulator.prices import Prices, exchanged_bytes, link, local_bytes, local_shape, op_costs
from autopar.ir.biases import products_with_bias
from autopar.ir.convert import COLLECTIVES
from autopar.ir.graph import SOURCES, Graph, Node
from autopar.ir.optable import local_row, row
from autopar.ir.program import DATA_AXIS, MICROBATCH_AXIS
from autopar.ir.recompute import EXPENSIVE, is_comm, once

FULL, INPUTS, WEIGHTS = "full", "inputs", "weights"


class Calls(NamedTuple):
    """All calls of a ``call`` node."""

    node: Node


Item: TypeAlias = Work | Collective | Post | Wait | Calls


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Time of all operations and of all collectives, in ns; ``dear``: of what selective recomputation runs once."""

    forward_ns: int = 0
    dear_ns: int = 0
    backward_ns: int = 0
    sent_ns: int = 0
    sent_back_ns: int = 0
    sent_aside_ns: int = 0
    sent_back_aside_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class Script:
    """``backward``: the whole pass, and its two halves where a schedule splits it; ``again``: recomputation."""

    forward: tuple[Item, ...]
    backward: Mapping[str, tuple[Item, ...]]
    again: tuple[Item, ...]
    totals: Totals


@dataclass(eq=False)
class _Entry:
    """One step of the graph, in its place; ``halves``: backward's for the stage before and for parameters."""

    node: Node
    forward: tuple[Item, ...] = ()
    inputs: tuple[Item, ...] = ()
    weights: tuple[Item, ...] = ()
    again: tuple[Item, ...] = ()
    keeps: bool = False  # something for backward, so that recomputation gets here
    reads: tuple[_Entry, ...] = field(default=(), repr=False)
    heavy: bool = False
    moves: tuple[Move | None, Move | None] | None = None


def script(
    graph: Graph, marks: Gradients, prices: Prices, *, recompute: str | None = None, nodes: Sequence[Node] | None = None
) -> Script:
    """Of a lowered graph. ``nodes``: those that a step needs, if not all; ``recompute``: ``full`` or ``selective``."""
    work = _Writing(graph, marks, prices, recompute, graph.nodes if nodes is None else nodes)
    return work.run()


class _Writing:
    def __init__(
        self, graph: Graph, marks: Gradients, prices: Prices, recompute: str | None, nodes: Sequence[Node]
    ) -> None:
        self.graph, self.marks, self.prices, self.nodes = graph, marks, prices, nodes
        self.single = once(graph) if recompute == "selective" else {}
        self.recomputed, self.overlaps = recompute is not None, recompute != "selective"
        self.values, self.biases = graph.values(), products_with_bias(graph, converted=True)
        self.made: dict[str, _Entry] = {}
        self.stored: set[str] = set()
        self.totals = dict.fromkeys((field.name for field in fields(Totals)), 0)

    def run(self) -> Script:
        entries = [self._entry(node) for node in self.nodes if not self._vanishes(node)]
        if self.overlaps:
            self._spread(entries)
        for entry in entries:
            if entry.moves is not None:
                self._blocking(entry)
        backward = {
            FULL: _joined(item for entry in reversed(entries) for item in (*entry.inputs, *entry.weights)),
            INPUTS: _joined(item for entry in reversed(entries) for item in entry.inputs),
            WEIGHTS: _joined(item for entry in reversed(entries) for item in entry.weights),
        }
        return Script(
            forward=_joined(item for entry in entries for item in entry.forward), backward=backward,
            again=_again(entries) if self.recomputed else (), totals=Totals(**self.totals),
        )  # fmt: skip

    def _vanishes(self, node: Node) -> bool:
        """Conversions that the program does not do itself: their result is their operand."""
        if not is_comm(node):
            return False
        axis = str(node.attr("axis"))
        gone = node.attr("owner") in ("runtime", "step") or axis == MICROBATCH_AXIS
        gone = gone or self.prices.mesh.size(axis) == 1
        (operand,) = node.uses()
        if operand in self.stored:
            self.stored.add(node.result.name)
        if gone and operand in self.made:
            self.made[node.result.name] = self.made[operand]
        return gone

    def _entry(self, node: Node) -> _Entry:
        entry = _Entry(node)
        entry.reads = tuple(dict.fromkeys(self.made[name] for name in node.uses() if name in self.made))
        for value in node.results:
            self.made[value.name] = entry
        if node.target == "param":
            self.stored.add(node.result.name)
        elif node.target == "call":
            entry.heavy = True
            entry.forward = entry.inputs = (Calls(node),)
            entry.weights = (Calls(node),)
        elif is_comm(node):
            entry.moves = self._moves(node)
        elif node.target not in SOURCES:
            # the runtime looks at the row of the operation as it is written, not at what it is priced by
            entry.heavy = row(node).op_class in EXPENSIVE
            self._operation(entry)
        return entry

    def _mark(self, name: str | None) -> int:
        return 0 if name is None else self.marks[self.graph.name, name]

    def _operation(self, entry: _Entry) -> None:
        node, names = entry.node, flat(entry.node)
        marks = [self._mark(name) for name in names]
        grads = [bool(mark) for mark in marks]
        operands = [None if name is None else self.values[name] for name in names]
        joined = node.results[0].name in self.biases
        costs = list(op_costs(node, operands, grads, self.prices.imbalance, joined=joined))
        dear = local_row(node).op_class in EXPENSIVE
        if costs:
            ns = sum(self.prices.compute_ns(forward) for forward, _ in costs if forward is not None)
            self.totals["dear_ns" if dear else "forward_ns"] += ns
            entry.forward = _work(node, "forward", ns)
            entry.again = () if node.results[0].name in self.single else _work(node, "recompute", ns)
            entry.keeps = any(grads) and _saves(node, grads)
        if backwards := [backward for _, backward in costs if backward is not None]:
            ns = sum(map(self.prices.compute_ns, backwards))
            self.totals["backward_ns"] += ns
            own = round(ns * _own_share(node, marks))
            entry.inputs, entry.weights = _work(node, "backward", ns - own), _work(node, "backward", own)
        if node.attr("exchange") is not None:
            self._exchange(entry, any(grads))

    def _exchange(self, entry: _Entry, learns: bool) -> None:
        """Rows of tokens go to the experts of other devices before the work, and back after it."""
        node, axis = entry.node, str(entry.node.attr("exchange"))
        size = each_way_bytes(*exchanged_bytes(node, self.values, self.prices.imbalance))
        inside = node.attr("inside")
        groups = self.prices.parts(axis, inside) if isinstance(inside, int) else (self.prices.groups[axis],)
        ahead, behind = (
            [self._sent(node, "all_to_all", size, group, phase) for group in groups]
            for phase in ("forward", "backward")
        )
        self.totals["sent_ns"] += 2 * sum(move.ns for move in ahead)
        entry.forward = (*map(Collective, ahead), *entry.forward, *map(Collective, reversed(ahead)))
        if entry.again:
            entry.again = (*map(_recomputed, ahead), *entry.again, *map(_recomputed, reversed(ahead)))
        if learns:
            self.totals["sent_back_ns"] += 2 * sum(move.ns for move in behind)
            entry.inputs = (*map(Collective, behind), *entry.inputs, *map(Collective, reversed(behind)))

    def _moves(self, node: Node) -> tuple[Move | None, Move | None]:
        """What a conversion sends, forward and backward."""
        (name,) = node.uses()
        axis, back = str(node.attr("axis")), str(node.attr("backward", "none"))
        ahead = self._move(node, node.target.removeprefix("comm."), local_bytes(self.values[name]), axis, "forward")
        each = sent_back_bytes(node.result.type.dtype, back, parameter=name in self.stored)
        size = math.prod(local_shape(node.result)) * each
        behind = self._move(node, back, size, axis, "backward") if self._mark(name) else None
        # what goes the way of parameters is slowed down by them, and lets them pass
        times = 2 if self.prices.aside and axis == DATA_AXIS else 1
        for total, move in (("sent", ahead), ("sent_back", behind)):
            self.totals[f"{total}_ns"] += 0 if move is None else times * move.ns
            self.totals[f"{total}_aside_ns"] += 0 if move is None or not self.prices.aside else move.ns
        return ahead, behind

    def _move(self, node: Node, kind: str, payload_bytes: int, axis: str, category: str) -> Move | None:
        if kind not in COLLECTIVES:
            return None
        return self._sent(node, kind, payload_bytes, self.prices.groups[axis], category)

    def _sent(self, node: Node, kind: str, payload_bytes: int, group: Group, category: str) -> Move:
        return Move(
            name=f"{kind} {group.axis}", where=node.source or node.result.name,
            ns=self.prices.move_ns(kind, payload_bytes, group), category=category, cause="collectives",
            stream=f"collectives {group.axis}", link=link(group),
        )  # fmt: skip

    def _blocking(self, entry: _Entry) -> None:
        assert entry.moves is not None
        ahead, behind = entry.moves
        entry.forward = () if ahead is None else (Collective(ahead),)
        entry.again = () if ahead is None or entry.node.result.name in self.single else (_recomputed(ahead),)
        self._back(entry, () if behind is None else (Collective(behind),))

    def _back(self, entry: _Entry, items: tuple[Item, ...]) -> None:
        """Backward's items, in the half that they belong to."""
        (name,) = entry.node.uses()
        if self._mark(name) & RECEIVED:
            entry.inputs = items
        else:
            entry.weights = items

    def _spread(self, entries: list[_Entry]) -> None:
        """Cut the conversions that have heavy work between operand and first use in two."""
        for entry in [each for each in entries if each.moves is not None]:
            (operand,) = entry.reads or (None,)
            if operand is None or operand.node.target in SOURCES or entry.node.result.name in self.stored:
                continue
            after = entries.index(operand)
            used = [at for at, each in enumerate(entries) if entry in each.reads]
            if not used and not self._leaves(entry):
                continue
            first = min(used, default=len(entries))
            if not any(each.heavy for each in entries[after + 1 : first]):
                continue
            entries.remove(entry)
            received = _Entry(entry.node)
            self._halves(entry, received)
            entries.insert(after + 1, entry)
            for each in entries:
                each.reads = tuple(received if read is entry else read for read in each.reads)
            received.reads = (entry,)
            # one entry less before the first use, and the sending one more
            entries.insert(first, received)

    def _leaves(self, entry: _Entry) -> bool:
        return any(self.made[name] is entry for name in self.graph.outputs if name in self.made)

    def _halves(self, sent: _Entry, received: _Entry) -> None:
        assert sent.moves is not None
        ahead, behind = sent.moves
        name = (self.graph.name, sent.node.result.name)
        sent.moves = None
        if ahead is not None:
            sent.forward, received.forward = (Post((*name, 0), ahead),), (Wait((*name, 0), ahead.cause),)
            again = _recomputed(ahead).move
            sent.again, received.again = (Post((*name, 1), again),), (Wait((*name, 1), again.cause),)
        if behind is not None:
            self._back(received, (Post((*name, 2), behind),))
            self._back(sent, (Wait((*name, 2), behind.cause),))


def _work(node: Node, category: str, ns: int) -> tuple[Work, ...]:
    part = Part(node.target, node.source or node.results[0].name, ns)
    return (Work(ns, category, (part,)),) if ns else ()


def _recomputed(move: Move) -> Collective:
    return Collective(move._replace(category="recompute"))


def _own_share(node: Node, marks: Sequence[int]) -> float:
    """The part of an operation's backward that parameters alone need."""
    wanted = [mark for mark in marks if mark]
    own = [mark for mark in wanted if not mark & RECEIVED]
    if local_row(node).op_class in ("matmul", "conv"):
        return len(own) / len(wanted)
    return float(len(own) == len(wanted))


def _saves(node: Node, grads: Sequence[bool]) -> bool:
    entry = local_row(node)
    kept = any(entry.keeps_operand(index, grads) for index in range(len(grads)))
    return kept or entry.keeps("r") or "mask" in entry.saves


def _again(entries: Sequence[_Entry]) -> tuple[Item, ...]:
    """Up to the last operation that keeps something."""
    last = max((at for at, entry in enumerate(entries) if entry.keeps), default=-1)
    if last < 0:
        return ()
    found = [item for entry in entries[:last] for item in entry.again]
    entry = local_row(entries[last].node)
    if entry.op_class not in EXPENSIVE or entry.keeps("r"):
        found += entries[last].again
    awaited = {item.key for item in found if isinstance(item, Wait)}
    return _joined(item for item in found if not isinstance(item, Post) or item.key in awaited)


def _joined(items: Iterable[Item]) -> tuple[Item, ...]:
    """Operations that follow one another are one piece of work."""
    made: list[Item] = []
    for item in items:
        before = made[-1] if made else None
        if isinstance(item, Calls) and isinstance(before, Calls) and item.node is before.node:
            continue  # both halves of backward name it
        if isinstance(item, Work) and isinstance(before, Work) and item.category == before.category:
            made[-1] = Work(before.ns + item.ns, item.category, before.parts + item.parts)
        else:
            made.append(item)
    return tuple(made)

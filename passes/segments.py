"""Variables and tables of one segment of the problem: a block, or the main graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from autopar.ir.layout import Layout
from autopar.passes.candidate import Mode
from autopar.passes.edges import Consumer, Edge, Edges
from autopar.passes.facts import Fact
from autopar.passes.pricing import Pricing
from autopar.passes.problem import FORBIDDEN, IntArray, Segment, Table
from autopar.passes.storage import Kept
from autopar.passes.strategies import Strategy

FEWER = 1.5  # consumers that ask for so many times fewer layouts than they have strategies are told apart by layout

Choice: TypeAlias = "Strategy | Layout | Mode | tuple[Layout, ...]"


@dataclass(frozen=True, slots=True)
class Variable:
    """``kind``: node, source, hub, need, carried, shared, out or mode. ``name``: the value (or graph) it decides."""

    kind: str
    name: str
    values: tuple[Choice, ...]


@dataclass(eq=False)
class SegmentBuilder:
    """Collects variables and tables; variable 0 is the mode. One microbatch is held at once."""

    name: str
    modes: tuple[Mode, ...]
    microbatches: int
    edges: Edges
    piped: bool = False
    variables: list[Variable] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mode = self.variable("mode", self.name, self.modes)
        # how often the forward pass of cheap work runs, and of what selective recomputation does once
        self.cheap = np.array([1 + (mode.recompute != "none") for mode in self.modes], dtype=np.int64)
        self.dear = np.array([1 + (mode.recompute == "full") for mode in self.modes], dtype=np.int64)
        self.dropped = np.array([mode.recompute != "none" for mode in self.modes], dtype=bool)
        # how many backwards before the last have traffic, and how many forwards (torch's pipelines gather once)
        self.befores = np.array([(self.microbatches - 1) * (mode.zero >= 2) for mode in self.modes], dtype=np.int64)
        self.forwards = np.array(
            [self.microbatches if mode.zero == 3 and not self.piped else 1 for mode in self.modes], dtype=np.int64
        )
        # what traffic within nodes lets go on: not what HSDP does there
        self.beside = np.array([not mode.inside for mode in self.modes], dtype=np.int64)
        self.selective = np.array([mode.recompute == "selective" for mode in self.modes], dtype=bool)

    @property
    def pricing(self) -> Pricing:
        return self.edges.conversions.pricing

    def variable(self, kind: str, name: str, values: Sequence[Choice]) -> int:
        self.variables.append(Variable(kind, name, tuple(values)))
        return len(self.variables) - 1

    def segment(self) -> Segment:
        return Segment(
            name=self.name, domains=tuple(len(v.values) for v in self.variables), tables=tuple(self.tables)
        )

    def passes_ns(self, forward: IntArray, backward: IntArray, again: IntArray) -> IntArray:
        """Time in a step, a mode axis appended: forward ``again`` times."""
        time = np.multiply.outer(forward, again) + backward[..., None]
        return np.where(forward[..., None] >= FORBIDDEN, FORBIDDEN, self.microbatches * time)

    def by_mode(self, saved: IntArray, kept: IntArray | None = None) -> tuple[IntArray, IntArray]:
        """Saved bytes as (held through the step, held while the block runs backward), a mode axis appended.

        ``kept``: what selective recomputation holds through the step.
        """
        both = np.repeat(saved[..., None], len(self.modes), axis=-1)
        held, dropped = np.where(self.dropped, 0, both), np.where(self.dropped, both, 0)
        if kept is not None and self.selective.any():
            held = np.where(self.selective, kept[..., None], held)
            dropped = np.where(self.selective, np.maximum(dropped - held, 0), dropped)
        return held, dropped

    def node(
        self, variable: int, forward: IntArray, backward: IntArray, saved: IntArray, transient: IntArray,
        inner: IntArray, sent: IntArray, covers: IntArray, covers_back: IntArray, *, expensive: bool,
    ) -> None:  # fmt: skip
        """What a node's strategies cost: [strategy] arrays.

        What selective recomputation keeps is in its edges, but for what is ``inner`` to an operation. ``sent``:
        communication inside it, each way. ``covers``, ``covers_back``: for how long other communication may go on.
        """
        again = self.dear if expensive else self.cheap
        time = self.passes_ns(forward, backward, again)
        held, dropped = self.by_mode(saved, inner if expensive and inner.any() else None)
        if expensive:
            dropped = np.where(self.selective, 0, dropped)
        cover, earlier, ahead = self._covers(covers, covers_back, again, self.pricing.overlap)
        self.tables.append(Table(
            variables=(variable, self.mode), sync_ns=time + self.passes_ns(sent, sent, again),
            cover_ns=cover, earlier_ns=earlier, ahead_ns=ahead,
            bytes=held, transient_bytes=dropped + transient[:, None], saved_bytes=held,
        ))  # fmt: skip

    def _covers(
        self, forward: IntArray, backward: IntArray, again: IntArray, share: float = 1.0
    ) -> tuple[IntArray, IntArray | None, IntArray]:
        """What such a time covers of the last backward, and of those before it and of forwards, as debts."""
        last = np.rint(share * (np.multiply.outer(forward, again - 1) + backward[..., None])).astype(np.int64)
        ahead = np.rint(share * forward[..., None]).astype(np.int64) * np.ones_like(again)
        return last, None if self.microbatches == 1 else -last * self.befores, -ahead * self.forwards

    def memory(self, variables: tuple[int, ...], held: IntArray, transient: IntArray | None = None) -> Table:
        """``held`` of each microbatch."""
        none = np.zeros(held.shape, np.int64)
        return Table(variables=variables, sync_ns=none, bytes=held, transient_bytes=transient, saved_bytes=held)

    def equal(
        self, left: int, left_layouts: Sequence[Layout], right: int, right_layouts: Sequence[Layout]
    ) -> None:
        """Two variables stand for the same layout."""
        if left == right:
            return
        self._forbid(left, right, _equal(left_layouts, right_layouts))

    def edge(
        self, value: str, fact: Fact, producer: int, have: Sequence[Layout], consumers: Sequence[Consumer],
        *, free: Sequence[bool], expensive: bool = False, crosses_time: bool = False,
    ) -> None:  # fmt: skip
        """Bring a value from the producer's layouts to its consumers.

        ``free[i]``: the value in the producer's layout i is held anyway, it need not be saved again.
        ``expensive``: selective recomputation does not run the producer again.
        """
        edge = self.edges.value(
            fact, have, consumers, free=free, expensive=expensive, crosses_time=crosses_time,
            selective=bool(self.selective.any()),
        )  # fmt: skip
        self._attach(producer, self.targets(value, consumers), edge)

    def parameter(
        self, name: str, fact: Fact, producer: int, starts: Sequence[Sequence[Layout]], consumers: Sequence[Consumer],
        kept: Kept,
    ) -> None:  # fmt: skip
        """A parameter's edge: ``starts[i][g]`` is the layout that conversions start from for storage i, group g."""
        edge = self.edges.parameter(fact, starts, consumers, selective=bool(self.selective.any()))
        self._attach(producer, self.targets(name, consumers), edge, kept)

    def targets(self, value: str, consumers: Sequence[Consumer]) -> tuple[int, IntArray | None]:
        """The variable that decides where the value is needed, and which set each of its entries means."""
        groups = self.edges.groups(consumers)
        if len(consumers) == 1:
            at = {group[0]: number for number, group in enumerate(groups)}
            return consumers[0].variable, np.array([at[layout] for layout in consumers[0].needs])
        hub = self.variable("hub", value, groups)
        for consumer in consumers:
            variable, needs = self._need(value, consumer)
            self._forbid(hub, variable, self.edges.serving(groups, needs))
        return hub, None

    def _need(self, value: str, consumer: Consumer) -> tuple[int, tuple[Layout, ...]]:
        """A variable over what a consumer needs: its own, or another where many of its entries need the same."""
        distinct = tuple(dict.fromkeys(consumer.needs))
        if FEWER * len(distinct) > len(consumer.needs):
            return consumer.variable, consumer.needs
        need = self.variable("need", value, distinct)
        self._forbid(need, consumer.variable, _equal(distinct, consumer.needs))
        return need, distinct

    def _forbid(self, left: int, right: int, allowed: npt.NDArray[np.bool_]) -> None:
        self.tables.append(
            Table(variables=(left, right), sync_ns=np.where(allowed, 0, FORBIDDEN).astype(np.int64))
        )

    def _attach(
        self, producer: int, targets: tuple[int, IntArray | None], edge: Edge, kept: Kept | None = None
    ) -> None:
        variable, index = targets
        time = self.passes_ns(edge.forward_ns, edge.backward_ns, self.dear)
        held, dropped = self.by_mode(edge.saved, edge.keeps)
        hide: IntArray | None = None
        cover: IntArray | None = None
        earlier: IntArray | None = None
        ahead: IntArray | None = None
        if edge.aside_ns is not None:
            cover, earlier, ahead = self._covers(*edge.aside_ns, self.dear)
            cover, ahead = cover * self.beside, ahead * self.beside
            earlier = None if earlier is None else earlier * self.beside
        per_microbatch = held
        if kept is not None:
            time, held, dropped = time + kept.sync_ns, held + kept.bytes, dropped + kept.transient_bytes
            time, hide = np.minimum(time, FORBIDDEN), kept.hide_ns
            ahead = kept.ahead_ns if ahead is None else kept.ahead_ns + ahead
            if self.microbatches > 1:
                earlier = kept.earlier_ns if earlier is None else kept.earlier_ns + earlier
        if index is not None:
            time, held, dropped = time[:, index], held[:, index], dropped[:, index]
            per_microbatch = per_microbatch[:, index]
            hide = None if hide is None else hide[:, index]
            cover = None if cover is None else cover[:, index]
            earlier = None if earlier is None else earlier[:, index]
            ahead = None if ahead is None else ahead[:, index]
        if variable == producer:
            raise ValueError("a value's producer and consumer are one variable")
        self.tables.append(Table(
            variables=(producer, variable, self.mode), sync_ns=time, hide_ns=hide, cover_ns=cover, earlier_ns=earlier,
            ahead_ns=ahead, bytes=held, transient_bytes=dropped, saved_bytes=per_microbatch,
        ))  # fmt: skip


def _equal(left: Sequence[Layout], right: Sequence[Layout]) -> npt.NDArray[np.bool_]:
    """Which are the same, [left, right]."""
    numbers: dict[Layout, int] = {}
    one, other = (np.array([numbers.setdefault(each, len(numbers)) for each in known]) for known in (left, right))
    same: npt.NDArray[np.bool_] = one[:, None] == other[None, :]
    return same

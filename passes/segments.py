"""Variables and tables of one segment of the problem: a block, or the main graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from autopar.ir.layout import Layout
from autopar.passes.candidate import Mode
from autopar.passes.conversions import Conversions, hub_sets, trees_ns
from autopar.passes.facts import Fact
from autopar.passes.pricing import local_bytes
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


@dataclass(frozen=True, slots=True)
class Consumer:
    """A variable and the layout that each of its entries needs of a value; ``saves``: kept for backward."""

    variable: int
    needs: tuple[Layout, ...]
    saves: bool = False


@dataclass(eq=False)
class SegmentBuilder:
    """Collects variables and tables; variable 0 is the mode. One microbatch is held at once."""

    name: str
    modes: tuple[Mode, ...]
    microbatches: int
    conversions: Conversions
    variables: list[Variable] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mode = self.variable("mode", self.name, self.modes)
        # how often the forward pass of cheap work runs, and of what selective recomputation does once
        self.cheap = np.array([1 + (mode.recompute != "none") for mode in self.modes], dtype=np.int64)
        self.dear = np.array([1 + (mode.recompute == "full") for mode in self.modes], dtype=np.int64)
        self.dropped = np.array([mode.recompute != "none" for mode in self.modes], dtype=bool)
        self.selective = np.array([mode.recompute == "selective" for mode in self.modes], dtype=bool)

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
        *, expensive: bool,
    ) -> None:  # fmt: skip
        """What a node's strategies cost: [strategy] arrays. What selective recomputation keeps is in its edges."""
        time = self.passes_ns(forward, backward, self.dear if expensive else self.cheap)
        held, dropped = self.by_mode(saved)
        if expensive:
            dropped = np.where(self.selective, 0, dropped)
        self.tables.append(Table(
            variables=(variable, self.mode), sync_ns=time,
            cover_ns=np.rint(time * self.conversions.pricing.overlap).astype(np.int64),
            bytes=held, transient_bytes=dropped + transient[:, None], saved_bytes=held,
        ))  # fmt: skip

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
        self._forbid(left, right, np.array([[a == b for b in right_layouts] for a in left_layouts]))

    def edge(
        self, value: str, fact: Fact, producer: int, have: Sequence[Layout], consumers: Sequence[Consumer],
        *, free: Sequence[bool], expensive: bool = False, crosses_time: bool = False,
    ) -> None:  # fmt: skip
        """Bring a value from the producer's layouts to its consumers.

        ``free[i]``: the value in the producer's layout i is held anyway, it need not be saved again.
        ``expensive``: selective recomputation does not run the producer again.
        """
        targets, groups = self.targets(value, consumers)
        haves = list(dict.fromkeys(have))
        needs = list(dict.fromkeys(layout for group in groups for layout in group))
        start = self.conversions.matrix(fact, haves, needs, crosses_time=crosses_time)
        several = any(len(group) > 1 for group in groups)
        between = self.conversions.matrix(fact, needs, needs, crosses_time=crosses_time) if several else start
        forward, backward = trees_ns(start, between, [[needs.index(t) for t in group] for group in groups])
        saved = self._saved(fact, have, groups, consumers, free)
        rows = [haves.index(layout) for layout in have]
        keeps = None
        if self.selective.any():
            keeps = self.conversions.keeping.bytes(fact, have, groups, expensive=expensive)
        self._attach(producer, targets, forward[rows], backward[rows], saved, keeps)

    def kept(self, fact: Fact, producer: int, starts: Sequence[Sequence[Layout]],
             consumers: Sequence[Consumer], groups: Sequence[tuple[Layout, ...]], targets: tuple[int, IntArray | None],
             kept: Kept) -> None:  # fmt: skip
        """A parameter's edge: ``starts[i][g]`` is the layout that conversions start from for storage i, group g."""
        shape = (len(starts), len(groups))
        forward, backward = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        saved = np.zeros(shape, np.int64)
        keepers = {layout for consumer in consumers if consumer.saves for layout in consumer.needs}
        for i, row in enumerate(starts):
            for g, group in enumerate(groups):
                start = self.conversions.matrix(fact, [row[g]], group)
                between = self.conversions.matrix(fact, group, group)
                f, b = trees_ns(start, between, [range(len(group))])
                forward[i, g], backward[i, g] = f[0, 0], b[0, 0]
                saved[i, g] = sum(
                    local_bytes(t, fact.type) for t in group
                    if t in keepers and t.local_shape(fact.type.shape) != row[g].local_shape(fact.type.shape)
                )  # fmt: skip
        keeps = None
        if self.selective.any():
            bytes_of = self.conversions.keeping.bytes
            pairs = [
                [bytes_of(fact, [at], [group], expensive=False)[0, 0] for at, group in zip(row, groups, strict=True)]
                for row in starts
            ]
            keeps = np.array(pairs, dtype=np.int64)
        self._attach(producer, targets, forward, backward, saved, keeps, kept)

    def targets(
        self, value: str, consumers: Sequence[Consumer]
    ) -> tuple[tuple[int, IntArray | None], list[tuple[Layout, ...]]]:
        """The variable that decides where the value is needed, and the set that each of its entries means."""
        if len(consumers) == 1:
            needs = consumers[0].needs
            distinct = list(dict.fromkeys(needs))
            index = np.array([distinct.index(layout) for layout in needs])
            return (consumers[0].variable, index), [(layout,) for layout in distinct]
        groups = list(hub_sets([consumer.needs for consumer in consumers]))
        hub = self.variable("hub", value, groups)
        for consumer in consumers:
            variable, needs = self._need(value, consumer)
            self._forbid(hub, variable, np.array([[need in group for need in needs] for group in groups]))
        return (hub, None), groups

    def _need(self, value: str, consumer: Consumer) -> tuple[int, tuple[Layout, ...]]:
        """A variable over what a consumer needs: its own, or another where many of its entries need the same."""
        distinct = tuple(dict.fromkeys(consumer.needs))
        if FEWER * len(distinct) > len(consumer.needs):
            return consumer.variable, consumer.needs
        need = self.variable("need", value, distinct)
        self._forbid(need, consumer.variable, np.array([[a == b for b in consumer.needs] for a in distinct]))
        return need, distinct

    def _forbid(self, left: int, right: int, allowed: npt.NDArray[np.bool_]) -> None:
        self.tables.append(
            Table(variables=(left, right), sync_ns=np.where(allowed, 0, FORBIDDEN).astype(np.int64))
        )

    def _saved(
        self, fact: Fact, have: Sequence[Layout], groups: Sequence[tuple[Layout, ...]],
        consumers: Sequence[Consumer], free: Sequence[bool],
    ) -> IntArray:  # fmt: skip
        keepers = {layout for consumer in consumers if consumer.saves for layout in consumer.needs}
        bytes_of = {layout: local_bytes(layout, fact.type) for layout in keepers}
        rows = [
            [
                sum(bytes_of[t] for t in group if t in keepers and not (held and t == layout))
                for group in groups
            ]
            for layout, held in zip(have, free, strict=True)
        ]
        return np.array(rows, dtype=np.int64).reshape(len(have), len(groups))

    def _attach(
        self, producer: int, targets: tuple[int, IntArray | None], forward: IntArray, backward: IntArray,
        saved: IntArray, keeps: IntArray | None, kept: Kept | None = None,
    ) -> None:  # fmt: skip
        variable, index = targets
        time = self.passes_ns(forward, backward, self.dear)
        held, dropped = self.by_mode(saved, keeps)
        hide: IntArray | None = None
        per_microbatch = held
        if kept is not None:
            time, held, dropped = time + kept.sync_ns, held + kept.bytes, dropped + kept.transient_bytes
            time, hide = np.minimum(time, FORBIDDEN), kept.hide_ns
        if index is not None:
            time, held, dropped = time[:, index], held[:, index], dropped[:, index]
            per_microbatch = per_microbatch[:, index]
            hide = None if hide is None else hide[:, index]
        if variable == producer:
            raise ValueError("a value's producer and consumer are one variable")
        self.tables.append(Table(
            variables=(producer, variable, self.mode), sync_ns=time, hide_ns=hide, bytes=held, transient_bytes=dropped,
            saved_bytes=per_microbatch,
        ))  # fmt: skip

"""Variables and tables of one segment of the problem: a block, or the main graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from autopar.ir.layout import Layout, Partial
from autopar.passes.by_mode import Modes, Plain
from autopar.passes.candidate import Mode
from autopar.passes.edges import Consumer, Edge, Edges
from autopar.passes.facts import Fact
from autopar.passes.pricing import Pricing
from autopar.passes.problem import FORBIDDEN, IntArray, Segment, Table
from autopar.passes.regions import Region
from autopar.passes.strategies import Joint, Strategy
from autopar.passes.upkeep import Kept, Upkeep

FEWER = 1.5  # consumers that ask for so many times fewer layouts than they have strategies are told apart by layout

_ALLOWED, _FORBIDDEN = np.int64(0), np.int64(FORBIDDEN)

Choice: TypeAlias = "Strategy | Joint | Layout | Mode | tuple[Layout, ...]"


@dataclass(frozen=True, slots=True)
class Variable:
    """``kind``: node, source, hub, need, carried, shared, out or mode. ``name``: the value (or graph) it decides;
    ``like``: others that are used as it is."""

    kind: str
    name: str
    values: tuple[Choice, ...]
    like: tuple[str, ...] = ()


@dataclass(eq=False)
class SegmentBuilder:
    """Collects variables and tables; variable 0 is the mode."""

    name: str
    modes: tuple[Mode, ...]
    microbatches: int
    edges: Edges
    piped: bool = False
    variables: list[Variable] = field(default_factory=list)
    tables: list[Table | Plain] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mode = self.variable("mode", self.name, self.modes)
        self.ways = Modes(self.modes, self.microbatches, self.pricing.overlap, piped=self.piped)

    @property
    def pricing(self) -> Pricing:
        return self.edges.conversions.pricing

    def variable(self, kind: str, name: str, values: Sequence[Choice], like: tuple[str, ...] = ()) -> int:
        self.variables.append(Variable(kind, name, tuple(values), like))
        return len(self.variables) - 1

    def segment(self) -> Segment:
        plains = [table for table in self.tables if isinstance(table, Plain)]
        made = iter(self.ways.tables(plains, self.mode))
        tables = tuple(next(made) if isinstance(table, Plain) else table for table in self.tables)
        return Segment(name=self.name, domains=tuple(len(v.values) for v in self.variables), tables=tables)

    def node(
        self, variable: int, forward: IntArray, backward: IntArray, saved: IntArray, transient: IntArray,
        inner: IntArray, sent: IntArray, covers: IntArray, covers_back: IntArray, *, expensive: bool,
    ) -> None:  # fmt: skip
        """What a node's strategies cost: [strategy] arrays.

        What selective recomputation keeps is in its edges, but for what is ``inner`` to an operation. ``sent``:
        communication inside it, each way. ``covers``, ``covers_back``: for how long other communication may go on.
        """
        self.tables.append(Plain(
            variables=(variable,), node=True, dear=expensive, forward_ns=forward + sent, backward_ns=backward + sent,
            saved=saved, keeps=inner if expensive and inner.any() else None, passing=transient,
            aside_ns=(covers, covers_back),
        ))  # fmt: skip

    def region(self, variable: int, region: Region) -> None:
        """What placing several nodes at once costs, and their values on the way from one to the next."""
        self.node(variable, *region.prices, expensive=False)
        self.tables.append(Plain(
            variables=(variable,), node=False, dear=True, forward_ns=region.forward_ns, backward_ns=region.backward_ns,
            saved=region.saved, keeps=region.keeps if self.ways.some_selective else None, aside_ns=region.aside_ns,
        ))  # fmt: skip

    def once(self, variable: int, forward: IntArray) -> None:
        """Nanoseconds of what a node's strategies do once a step, before the first microbatch."""
        if forward.any():
            none = np.zeros_like(forward)
            self.tables.append(Plain(
                variables=(variable,), node=True, dear=False, forward_ns=forward, backward_ns=none, saved=none,
                once=True,
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
        self._forbid(left, right, _equal(left_layouts, right_layouts))

    def joined(self, left: int, made: Sequence[Layout], right: int, needs: Sequence[Layout]) -> None:
        """Sums over classes and the loss of them are one operation where classes are whole: nothing comes between."""
        self._forbid(left, right, ~_whole(made)[:, None] | _equal(made, needs))

    def same_logits(self, top: int, stats: int) -> None:
        """Maxima of rows and sums over classes both of whole classes, in one layout, or both of split ones."""
        tops, sums = ([each for each in self.variables[v].values if isinstance(each, Strategy)] for v in (top, stats))
        whole, other = _whole([each.results[0] for each in tops]), _whole([each.results[0] for each in sums])
        alike = _equal([each.operands[0] for each in tops], [each.operands[0] for each in sums])
        self._forbid(top, stats, np.where(whole[:, None], other & alike, ~other))

    def edge(
        self, value: str, fact: Fact, producer: int, have: Sequence[Layout], consumers: Sequence[Consumer],
        *, free: Sequence[bool], expensive: bool = False, crosses_time: bool = False,
        once: bool = False,
    ) -> None:  # fmt: skip
        """Bring a value from the producer's layouts to its consumers.

        ``free[i]``: the value in the producer's layout i is held anyway, it need not be saved again.
        ``expensive``: selective recomputation does not run the producer again. ``once``: a step, before the first
        microbatch, when nothing else can go on: more microbatches never cost less.
        """
        edge = self.edges.value(
            fact, have, consumers, free=free, expensive=expensive, crosses_time=crosses_time,
            selective=self.ways.some_selective,
        )  # fmt: skip
        self._attach(producer, self.targets(value, consumers), edge, once=once)

    def parameter(
        self, name: str, fact: Fact, layouts: Sequence[Layout], consumers: Sequence[Consumer], upkeep: Upkeep, *,
        trainable: bool,
    ) -> None:  # fmt: skip
        """A parameter, its edge and what it costs to keep. ``layouts``: in which it may be stored."""
        producer = self.variable("source", name, layouts)
        edge = self.edges.parameter(
            fact, layouts, consumers, trainable=trainable, selective=self.ways.some_selective
        )
        self._attach(producer, self.targets(name, consumers), edge, upkeep.of(self.microbatches))

    def targets(self, value: str, consumers: Sequence[Consumer]) -> tuple[int, IntArray | None]:
        """The variable that decides where the value is needed, and which set each of its entries means."""
        groups = self.edges.groups(consumers)
        if len(consumers) == 1:
            variable, needs = consumers[0].variable, consumers[0].needs
            if len(groups) == len(needs):  # all differ, and stand in their order
                return variable, None
            at = {group[0]: number for number, group in enumerate(groups)}
            return variable, np.array([at[layout] for layout in needs])
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
        self.tables.append(Table(variables=(left, right), sync_ns=np.where(allowed, _ALLOWED, _FORBIDDEN)))

    def _attach(
        self, producer: int, targets: tuple[int, IntArray | None], edge: Edge, kept: Kept | None = None, *,
        once: bool = False,
    ) -> None:  # fmt: skip
        variable, index = targets
        if variable == producer:
            raise ValueError("a value's producer and consumer are one variable")
        at = (slice(None), slice(None) if index is None else index)
        self.tables.append(Plain(
            variables=(producer, variable), node=False, dear=True, forward_ns=edge.forward_ns[at],
            backward_ns=edge.backward_ns[at], saved=edge.saved[at],
            keeps=None if edge.keeps is None else edge.keeps[at],
            aside_ns=None if once or edge.aside_ns is None else (edge.aside_ns[0][at], edge.aside_ns[1][at]),
            kept=kept if kept is None or index is None else kept.picked(index), once=once,
        ))  # fmt: skip


def _whole(made: Sequence[Layout]) -> npt.NDArray[np.bool_]:
    """Which have nothing left to be added up."""
    return np.array([not any(isinstance(each, Partial) for each in layout.placements) for layout in made])


def _equal(left: Sequence[Layout | None], right: Sequence[Layout | None]) -> npt.NDArray[np.bool_]:
    """Which are the same, [left, right]."""
    numbers: dict[Layout | None, int] = {}
    one, other = (np.array([numbers.setdefault(each, len(numbers)) for each in known]) for known in (left, right))
    same: npt.NDArray[np.bool_] = one[:, None] == other[None, :]
    return same

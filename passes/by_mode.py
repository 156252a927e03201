"""What the nodes and edges of a segment cost in each of its modes, worked out for all of them at once.

A segment has hundreds of small tables, and an operation on an array of all their entries takes hardly longer than on
one table's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from autopar.passes.candidate import Mode
from autopar.passes.problem import FORBIDDEN, IntArray, Table
from autopar.passes.upkeep import Kept

Pair: TypeAlias = tuple[IntArray, IntArray]
# Of the last backward, of those before it, of forwards.
Covers: TypeAlias = tuple[IntArray, IntArray | None, IntArray]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Plain:
    """A node or an edge before there are modes; arrays over ``variables``, of one microbatch.

    ``dear``: selective recomputation does not run it again. ``saved``: bytes for backward, ``keeps``: those that
    selective recomputation holds, None: it does as with all others. ``passing``: bytes held while it runs (nodes only).
    ``aside_ns``: for how long of forward and backward other traffic may go on. ``kept``: of a parameter's edge.
    ``once``: its time is that of a step, and nothing goes on meanwhile.
    """

    variables: tuple[int, ...]
    node: bool
    dear: bool
    forward_ns: IntArray
    backward_ns: IntArray
    saved: IntArray
    keeps: IntArray | None = None
    passing: IntArray | None = None
    aside_ns: Pair | None = None
    kept: Kept | None = None
    once: bool = False


class Modes:
    """``overlap``: for which share of a node's time other traffic may go on. One microbatch is held at once."""

    def __init__(self, modes: Sequence[Mode], microbatches: int, overlap: float, *, piped: bool) -> None:
        self.microbatches, self.overlap = microbatches, overlap
        # how often the forward pass of cheap work runs, and of what selective recomputation does once
        self.cheap = np.array([1 + (mode.recompute != "none") for mode in modes], dtype=np.int64)
        self.dear = np.array([1 + (mode.recompute == "full") for mode in modes], dtype=np.int64)
        self.dropped = np.array([mode.recompute != "none" for mode in modes], dtype=bool)
        # how many backwards before the last have traffic, and how many forwards (torch's pipelines gather once)
        self.befores = np.array([(microbatches - 1) * (mode.zero >= 2) for mode in modes], dtype=np.int64)
        again = [mode.zero == 3 and not piped for mode in modes]
        self.forwards = np.where(again, microbatches, 1).astype(np.int64)
        # what traffic within nodes lets go on: not what HSDP does there
        self.beside = np.array([not mode.inside for mode in modes], dtype=np.int64)
        self.selective = np.array([mode.recompute == "selective" for mode in modes], dtype=bool)
        self.some_selective = any(mode.recompute == "selective" for mode in modes)

    def tables(self, plains: Sequence[Plain], mode: int) -> list[Table]:
        """One for each, with a last axis over the modes, of which ``mode`` is the variable."""
        every = _Laid(plains, len(self.dropped))
        again = np.where(every.flags(lambda one: one.dear), self.dear, self.cheap)
        forward, backward = every.column(lambda one: one.forward_ns), every.column(lambda one: one.backward_ns)
        times = np.where(every.flags(lambda one: one.once), 1, self.microbatches)
        time = times * (forward * again + backward)
        sync = every.split(np.where(forward >= FORBIDDEN, FORBIDDEN, time))
        held, dropped = (every.split(array) for array in self._memory(every))
        rows = zip(plains, sync, held, dropped, self._covers(plains), strict=True)
        return [self._table(one, (*one.variables, mode), s, h, d, covers) for one, s, h, d, covers in rows]

    def _memory(self, every: _Laid) -> Pair:
        """Bytes (held through the step, held while the block runs backward)."""
        saved = every.column(lambda one: one.saved)
        held, dropped = np.where(self.dropped, 0, saved), np.where(self.dropped, saved, 0)
        if self.some_selective:
            chosen = self.selective & every.flags(lambda one: one.keeps is not None)
            held = np.where(chosen, every.column(lambda one: one.keeps), held)
            dropped = np.where(chosen, np.maximum(dropped - held, 0), dropped)
            dropped = np.where(self.selective & every.flags(lambda one: one.node and one.dear), 0, dropped)
        return held, dropped + every.column(lambda one: one.passing)

    def _covers(self, plains: Sequence[Plain]) -> list[Covers | None]:
        """What each one's time covers of the last backward, and of those before it and of forwards, as debts."""
        some = [one for one in plains if one.aside_ns is not None]
        every = _Laid(some, len(self.dropped))
        again = np.where(every.flags(lambda one: one.dear), self.dear, self.cheap)
        nodes = every.flags(lambda one: one.node)
        share, beside = np.where(nodes, self.overlap, 1.0), np.where(nodes, 1, self.beside)
        forward = every.column(lambda one: one.aside_ns and one.aside_ns[0])
        backward = every.column(lambda one: one.aside_ns and one.aside_ns[1])
        last = np.rint(share * (forward * (again - 1) + backward)).astype(np.int64) * beside
        ahead = -np.rint(share * forward).astype(np.int64) * beside * self.forwards
        earlier = every.split(-last * self.befores) if self.microbatches > 1 else itertools.repeat(None)
        found = zip(every.split(last), earlier, every.split(ahead), strict=False)
        return [None if one.aside_ns is None else next(found) for one in plains]

    def _table(
        self, one: Plain, variables: tuple[int, ...], sync: IntArray, held: IntArray, dropped: IntArray,
        covers: Covers | None,
    ) -> Table:  # fmt: skip
        cover, earlier, ahead = covers or (None, None, None)
        if (kept := one.kept) is None:
            return Table(
                variables=variables, sync_ns=sync, cover_ns=cover, earlier_ns=earlier, ahead_ns=ahead, bytes=held,
                transient_bytes=dropped, saved_bytes=held, once=one.once,
            )  # fmt: skip
        if self.microbatches > 1:
            earlier = kept.earlier_ns if earlier is None else kept.earlier_ns + earlier
        return Table(
            variables=variables, sync_ns=np.minimum(sync + kept.sync_ns, FORBIDDEN), hide_ns=kept.hide_ns,
            cover_ns=cover, earlier_ns=earlier, ahead_ns=kept.ahead_ns if ahead is None else kept.ahead_ns + ahead,
            bytes=held + kept.bytes, transient_bytes=dropped + kept.transient_bytes, saved_bytes=held,
            further_ns=kept.further_ns,
        )  # fmt: skip


class _Laid:
    """The entries of several, one after the other: columns [entry, 1], to be joined with modes."""

    def __init__(self, plains: Sequence[Plain], modes: int) -> None:
        self.plains = plains
        self.shapes = [(*one.forward_ns.shape, modes) for one in plains]
        self.sizes = [one.forward_ns.size for one in plains]
        self._none = np.zeros(max(self.sizes, default=0), dtype=np.int64)

    def flags(self, of: Callable[[Plain], bool]) -> npt.NDArray[np.bool_]:
        return np.repeat(np.array([of(one) for one in self.plains], dtype=bool), self.sizes)[:, None]

    def column(self, of: Callable[[Plain], IntArray | None]) -> IntArray:
        """Zeros for those that have none."""
        arrays = [of(one) for one in self.plains]
        laid = [self._none[:size] if a is None else a.ravel() for a, size in zip(arrays, self.sizes, strict=True)]
        return np.concatenate([self._none[:0], *laid])[:, None]

    def split(self, array: IntArray) -> list[IntArray]:
        """That of each, of an array [entry, mode]."""
        starts = itertools.accumulate(self.sizes, initial=0)
        return [
            array[start : start + size].reshape(shape)
            for start, size, shape in zip(starts, self.sizes, self.shapes, strict=False)
        ]

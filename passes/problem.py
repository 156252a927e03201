"""The problem that the solver solves: integers only, nanoseconds and bytes.

A *segment* is a set of variables, each with a finite domain, and *tables* over one to three of them. The
root segment runs once. A *chain* is a block segment that runs ``count`` times in a row; different calls may
choose different assignments.

Data       sync[t], hide[t], cover[t], earlier[t], ahead[t] ns and bytes[t], transient[t] for every entry of every
           table t
Variables  one value per variable of the root, and per call of every chain one value per block variable
Minimise   sum over instances i of  S[i] + max(0, N[i], N[i] + E[i], N[i] + E[i] + A[i]),   N = H - C,
           where S, H, C, E, A are the sums of sync, hide, cover, earlier, ahead over i        (1)
Subject to sum over i of bytes[i]  +  max over i of transient[i]  <=  memory_bytes             (2)
           no table stands at an entry whose sync is FORBIDDEN                                 (3)
           outputs of call j = inputs of call j + 1                                            (4)
           inputs of the first call = root_inputs, outputs of the last call = root_outputs     (5)
           shared of every call = root_shared                                                  (6)

An *instance* is the root (once) or one call of one chain. Traffic of every microbatch hides behind the computing of
every microbatch, traffic that comes once a step behind that of one; traffic of forward behind forward, that of
backward behind backward. So H and C are traffic and computing of the last backward with what comes once, E is how much
more traffic than computing the backwards before it have, and A how much more all forwards have. (Backward has more
traffic for its computing, so where it hides forward does.)
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autopar.ir.errors import IRError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

FORBIDDEN = 1 << 54
"""An entry whose ``sync_ns`` is this or more is not allowed. 512 of them may be added without overflow."""

LARGEST = 1 << 48
"""No other number of a table may reach this (3 days in nanoseconds, 256 TiB)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Costs that depend on the joint choice of one to three variables.

    All arrays are int64 and have the shape of the domains of ``variables``, in that order.
    ``None`` stands for zeros. ``hide_ns`` and ``cover_ns`` are never negative. ``saved_bytes``: the part of ``bytes``
    that each microbatch in flight adds, counted once; ``further_ns``: what a further microbatch adds to ``sync_ns`` at
    least; ``once``: of what runs before the first microbatch. The solver looks at none of them.
    """

    variables: tuple[int, ...]
    sync_ns: IntArray
    hide_ns: IntArray | None = None
    cover_ns: IntArray | None = None
    earlier_ns: IntArray | None = None
    ahead_ns: IntArray | None = None
    bytes: IntArray | None = None
    transient_bytes: IntArray | None = None
    saved_bytes: IntArray | None = None
    further_ns: IntArray | None = None
    once: bool = False

    def least_further_ns(self) -> FloatArray:
        """[value of the last variable]: the least of ``further_ns``; one 0 where there is none."""
        if self.further_ns is None:
            return np.zeros(1)
        others = tuple(range(self.sync_ns.ndim - 1))
        least = np.where(self.sync_ns < FORBIDDEN, self.further_ns, np.inf).min(axis=others)
        return np.asarray(np.where(np.isinf(least), 0.0, least))


FIELDS = ("sync_ns", "hide_ns", "cover_ns", "earlier_ns", "ahead_ns", "bytes", "transient_bytes")
"""Of a table, what the solver looks at."""

_arrays = operator.attrgetter(*FIELDS)
_INT64 = np.dtype(np.int64)
_SIGNED = ("sync_ns", "earlier_ns", "ahead_ns", "bytes")


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """Variables by index, with the size of each one's domain, and the tables over them."""

    name: str
    domains: tuple[int, ...]
    tables: tuple[Table, ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each table's entries begin in ``numbers``, and where the last one's end."""
        return tuple(itertools.accumulate((table.sync_ns.size for table in self.tables), initial=0))

    @cached_property
    def numbers(self) -> IntArray:
        """[field, entry]: all tables one after the other; nobody may write to it."""
        laid_out = np.zeros((len(FIELDS), self.offsets[-1]), dtype=np.int64)
        for start, end, table in zip(self.offsets, self.offsets[1:], self.tables, strict=False):
            for row, values in zip(laid_out, _arrays(table), strict=True):
                if values is not None:
                    row[start:end] = values.ravel()
        return laid_out

    @cached_property
    def saved(self) -> IntArray:
        """[entry]: ``saved_bytes`` of all tables one after the other."""
        laid_out = np.zeros(self.offsets[-1], dtype=np.int64)
        for start, end, table in zip(self.offsets, self.offsets[1:], self.tables, strict=False):
            if table.saved_bytes is not None:
                laid_out[start:end] = table.saved_bytes.ravel()
        return laid_out


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """A block called ``count`` times in a row.

    ``outputs[i]`` of call j is ``inputs[i]`` of call j + 1. ``shared`` are one and the same in all calls.
    ``root_inputs``, ``root_outputs`` and ``root_shared`` are the root variables they are identified with:
    inputs of the first call, outputs of the last call, shared of every call. No block variable may be
    named twice among inputs, outputs and shared; root variables may.
    """

    segment: Segment
    count: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    root_inputs: tuple[int, ...]
    root_outputs: tuple[int, ...]
    shared: tuple[int, ...] = ()
    root_shared: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A root segment and the chains that hang on its variables."""

    root: Segment
    chains: tuple[Chain, ...] = field(default=())


def verify_problem(problem: Problem) -> None:
    """Raise ``IRError`` naming the first broken invariant of ``problem``."""
    _verify_segment(problem.root)
    for number, chain in enumerate(problem.chains):
        _verify_segment(chain.segment)
        _verify_chain(chain, problem.root, f"chain {number} ({chain.segment.name})")
    verify_numbers(problem)


def verify_numbers(problem: Problem) -> None:
    """Raise ``IRError`` naming the first table with a number that is out of range. Requires: all else is as it should
    be."""
    for segment in (problem.root, *(chain.segment for chain in problem.chains)):
        for name, row in zip(FIELDS, segment.numbers, strict=True):
            if row.size and not _in_range(name, row):
                raise IRError(_out_of_range(segment, name))


def _verify_segment(segment: Segment) -> None:
    for variable, size in enumerate(segment.domains):
        if size < 1:
            raise IRError(f"segment {segment.name}: variable {variable} has an empty domain")
    for number, table in enumerate(segment.tables):
        where = f"segment {segment.name}, table {number} over {table.variables}"
        if not 1 <= len(table.variables) <= 3 or len(set(table.variables)) != len(table.variables):
            raise IRError(f"{where}: a table is over one to three different variables")
        if not all(0 <= v < len(segment.domains) for v in table.variables):
            raise IRError(f"{where}: the segment has variables 0 to {len(segment.domains) - 1}")
        shape = tuple([segment.domains[v] for v in table.variables])
        for name, values in zip(FIELDS, _arrays(table), strict=True):
            if values is not None and (values.shape != shape or values.dtype != _INT64):
                raise IRError(f"{where}: {name} is {values.dtype}{values.shape}, expected int64{shape}")


def _in_range(name: str, values: IntArray) -> bool:
    low = -LARGEST if name in _SIGNED else -1
    if int(values.min()) <= low:
        return False
    if int(values.max()) < LARGEST:
        return True
    return name == "sync_ns" and not ((values >= LARGEST) & (values < FORBIDDEN)).any()


def _out_of_range(segment: Segment, name: str) -> str:
    """What is wrong with the first table whose ``name`` is not in range."""
    number, table = next(
        (number, table) for number, table in enumerate(segment.tables)
        if getattr(table, name) is not None and not _in_range(name, getattr(table, name))
    )  # fmt: skip
    values = getattr(table, name)
    legal = values[values < FORBIDDEN] if name == "sync_ns" else values
    return (
        f"segment {segment.name}, table {number} over {table.variables}: {name} goes from {int(legal.min())} to "
        f"{int(legal.max())}, allowed are values above {-LARGEST if name in _SIGNED else -1} and below {LARGEST}"
    )


def _verify_chain(chain: Chain, root: Segment, where: str) -> None:
    if chain.count < 1:
        raise IRError(f"{where}: count is {chain.count}, expected 1 or more")
    named = (*chain.inputs, *chain.outputs, *chain.shared)
    if len(set(named)) != len(named):
        raise IRError(f"{where}: a block variable is named twice in {named}")
    pairs: Sequence[tuple[str, tuple[int, ...], tuple[int, ...]]] = (
        ("inputs", chain.inputs, chain.root_inputs),
        ("outputs", chain.outputs, chain.root_outputs),
        ("shared", chain.shared, chain.root_shared),
    )
    for name, inner, outer in pairs:
        if len(inner) != len(outer):
            raise IRError(f"{where}: {len(inner)} {name} but {len(outer)} root_{name}")
        for v, r in zip(inner, outer, strict=True):
            if not 0 <= v < len(chain.segment.domains) or not 0 <= r < len(root.domains):
                raise IRError(f"{where}: {name} name variable {v} of the block and {r} of the root; no such")
            if chain.segment.domains[v] != root.domains[r]:
                raise IRError(
                    f"{where}: block variable {v} has {chain.segment.domains[v]} values, "
                    f"root variable {r} has {root.domains[r]}"
                )
    sizes_in = tuple(chain.segment.domains[v] for v in chain.inputs)
    sizes_out = tuple(chain.segment.domains[v] for v in chain.outputs)
    if sizes_in != sizes_out:
        raise IRError(f"{where}: inputs have domains {sizes_in}, outputs {sizes_out}")


def choices(problem: Problem) -> tuple[int, float]:
    """Return the number of variables of the folded problem and log10 of its number of assignments."""
    segments = (problem.root, *(chain.segment for chain in problem.chains))
    counts = (1, *(chain.count for chain in problem.chains))
    log10 = sum(n * math.log10(d) for s, n in zip(segments, counts, strict=True) for d in s.domains)
    return sum(len(s.domains) for s in segments), log10

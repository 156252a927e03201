"""Check an assignment against the definition in ``autopar.passes.problem``, sharing no code with the solver.

Python integers only, one entry at a time, each numbered constraint where it is checked.
"""

from __future__ import annotations

from dataclasses import dataclass

from autopar.ir.errors import IRError
from autopar.passes.problem import FORBIDDEN, Chain, IntArray, Problem, Segment
from autopar.passes.solve.solution import CallRuns


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The numbers of a whole assignment. ``bytes`` includes the largest transient."""

    objective_ns: int
    bytes: int
    transient_bytes: int


def measure_assignment(problem: Problem, root: tuple[int, ...], calls: tuple[CallRuns, ...]) -> Totals:
    """Return the exact objective and memory of an assignment; raise ``IRError`` if it is not one."""
    if len(calls) != len(problem.chains):
        raise IRError(f"{len(calls)} chains assigned, the problem has {len(problem.chains)}")
    time, held, largest = measure_instance(problem.root, root)
    for chain, runs in zip(problem.chains, calls, strict=True):
        _check_boundary(chain, root, runs)
        for repeat, values in runs:
            t, b, w = measure_instance(chain.segment, values)
            time += repeat * t
            held += repeat * b
            largest = max(largest, w)
    return Totals(objective_ns=time, bytes=held + largest, transient_bytes=largest)


@dataclass(frozen=True, kw_only=True)
class Sums:
    """S, H, C, E and A of (1), bytes and transient bytes of one instance."""

    sync_ns: int
    hide_ns: int
    cover_ns: int
    earlier_ns: int
    ahead_ns: int
    bytes: int
    transient_bytes: int

    @property
    def exposed_ns(self) -> int:
        """What is not hidden."""
        late = self.hide_ns - self.cover_ns
        return max(0, late, late + self.earlier_ns, late + self.earlier_ns + self.ahead_ns)

    @property
    def time_ns(self) -> int:
        """(1) of the instance."""
        return self.sync_ns + self.exposed_ns


def measure_instance(segment: Segment, values: tuple[int, ...]) -> tuple[int, int, int]:
    """Time (1), bytes and transient bytes (2) of one instance, refusing forbidden entries (3)."""
    found = sums_of_instance(segment, values)
    return found.time_ns, found.bytes, found.transient_bytes


def sums_of_instance(segment: Segment, values: tuple[int, ...]) -> Sums:
    """The sums behind ``measure_instance``."""
    if len(values) != len(segment.domains):
        raise IRError(f"segment {segment.name}: {len(values)} values for {len(segment.domains)} variables")
    for v, (value, size) in enumerate(zip(values, segment.domains, strict=True)):
        if not 0 <= value < size:
            raise IRError(f"segment {segment.name}: variable {v} has value {value} of {size}")
    sync = hide = cover = earlier = ahead = held = transient = 0
    for number, table in enumerate(segment.tables):
        at = tuple([values[v] for v in table.variables])
        here: int = table.sync_ns.item(at)
        if here >= FORBIDDEN:
            raise IRError(f"segment {segment.name}: table {number} over {table.variables} forbids {at}")
        sync += here
        hide += _at(table.hide_ns, at)
        cover += _at(table.cover_ns, at)
        earlier += _at(table.earlier_ns, at)
        ahead += _at(table.ahead_ns, at)
        held += _at(table.bytes, at)
        transient += _at(table.transient_bytes, at)
    return Sums(
        sync_ns=sync, hide_ns=hide, cover_ns=cover, earlier_ns=earlier, ahead_ns=ahead, bytes=held,
        transient_bytes=transient,
    )  # fmt: skip


def _at(values: IntArray | None, at: tuple[int, ...]) -> int:
    return 0 if values is None else values.item(at)


def _check_boundary(chain: Chain, root: tuple[int, ...], runs: CallRuns) -> None:
    name = f"chain {chain.segment.name}"
    calls = sum(repeat for repeat, _ in runs)
    if calls != chain.count or any(repeat < 1 for repeat, _ in runs):
        raise IRError(f"{name}: {calls} calls assigned, expected {chain.count}")
    entering = [root[r] for r in chain.root_inputs]
    for number, (repeat, values) in enumerate(runs):
        if [values[v] for v in chain.inputs] != entering:
            raise IRError(f"{name}, run {number}: inputs differ from what comes in, {entering} (4, 5)")
        entering = [values[v] for v in chain.outputs]
        if repeat > 1 and [values[v] for v in chain.inputs] != entering:
            raise IRError(
                f"{name}, run {number}: repeated, but its outputs {entering} are not its inputs (4)"
            )
        if [values[v] for v in chain.shared] != [root[r] for r in chain.root_shared]:
            raise IRError(f"{name}, run {number}: shared values differ from the root's (6)")
    if entering != [root[r] for r in chain.root_outputs]:
        raise IRError(f"{name}: the last outputs {entering} differ from the root's (5)")

"""Decide whether a stretch of the sequence is a chain of isomorphic instances.

Compared node by node, operand by operand; nothing is taken from a hash. Of each operand one of these
holds in all instances alike:

    internal  the same result of the same node of its own instance                            (1)
    own       a parameter or buffer of its own, not used outside the instance                 (2)
    shared    one value from ahead of the run, or one parameter                               (3)
    carried   the same result of the instance before; for the first, one value from ahead     (4)
    ahead     a value computed ahead of the run from (1), (2) and (3), for the instance only  (5)

and a value that leaves an instance is carried: used by the next one, or, of the last, by anything;  (6)
or it is collected of every instance: the graph returns it of some, or all let it out to what comes
behind the run.                                                                                       (7)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autopar.passes.fold.ahead import Ahead
from autopar.passes.fold.sequence import Sequence

# A block that reads no parameter is worth its call only if it saves this many nodes.
PARAMETER_FREE_SAVING = 32
# Instances that let out the same values.
ALIKE = 3


@dataclass(frozen=True, kw_only=True)
class Run:
    """Instances of a block between the positions ``start`` and ``end`` of the sequence.

    ``instances``: for each its nodes, as positions in topological order; those ahead of ``start`` first.
    ``carried``: (node of the instance, result) that is handed on -> code of its initial value.
    ``collected``: (node of the instance, result) that the graph returns or uses behind the run.
    ``shared``: codes. ``own``: (node of the instance, operand) that reads each parameter of its own.
    """

    start: int
    end: int
    instances: tuple[tuple[int, ...], ...]
    carried: dict[tuple[int, int], int]
    shared: tuple[int, ...]
    own: tuple[tuple[int, int], ...]
    collected: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        return len(self.instances)

    @property
    def length(self) -> int:
        return len(self.instances[0])

    @property
    def saved(self) -> int:
        """Nodes less after folding, the call not counted."""
        return self.length * (self.count - 1)


def confirm(seq: Sequence, start: int, length: int, count: int, min_count: int) -> Run | None:
    """The run of at most ``count`` instances that begins at ``start``; None if it is too short.

    Requires: equal labels at distance ``length`` throughout.
    """
    first = min(count, max(min_count, ALIKE))  # most attempts fail there
    if count < min_count or _Check(seq, start, length).count(first) < min_count:
        return None
    while count >= min_count:
        check = _Check(seq, start, length)
        possible = check.count(count)
        if possible == count:
            return check.run(count)
        count = possible
    return None


class _Check:
    """One attempt with ``length`` nodes an instance; offsets count from the first node of an instance."""

    def __init__(self, seq: Sequence, start: int, length: int) -> None:
        self.seq, self.start, self.length = seq, start, length
        self.carried: dict[tuple[int, int], int] = {}
        self.shared: dict[int, None] = {}
        self.own: list[tuple[int, int]] = []
        self.ahead = Ahead(seq, start, self.shared.setdefault)

    def count(self, count: int) -> int:
        """How many instances (1) to (6) hold for, given that there are no more than ``count``.

        Less than ``count`` is an upper bound: what is ahead belongs to the instances that were asked for.
        """
        for offset in range(self.length):
            count = min(count, self._agreeing(offset, count))
            if count < 2:
                return 0
        count = min(count, self._closed(count))
        return count if self.carried and self.ahead.closed() else 0

    def run(self, count: int) -> Run | None:
        """The run that was checked; None if it is not worth a call."""
        rows = sorted(range(len(self.ahead.rows)), key=lambda row: self.ahead.rows[row][1])
        place = {row: at for at, row in enumerate(rows)}
        begins = range(self.start, self.start + count * self.length, self.length)
        run = Run(
            start=self.start,
            end=self.start + count * self.length,
            instances=tuple(
                (*(self.ahead.rows[row][i] for row in rows), *range(begin, begin + self.length))
                for i, begin in enumerate(begins)
            ),
            carried={(len(rows) + offset, index): code for (offset, index), code in self.carried.items()},
            shared=tuple(self.shared),
            own=(
                *((place[row], operand) for row, operand in self.ahead.own),
                *((len(rows) + offset, operand) for offset, operand in self.own),
            ),
            collected=tuple((len(rows) + offset, index) for offset, index in self._collected(count)),
        )
        reads_parameters = bool(run.own) or any(code in self.seq.signature for code in run.shared)
        return run if reads_parameters or run.saved >= PARAMETER_FREE_SAVING else None

    def _agreeing(self, offset: int, count: int) -> int:
        """How many instances agree in the node at ``offset``; 0 if the first two differ."""
        seq, second = self.seq, self.start + offset + self.length
        fixed: list[int] = []  # operands that need not be shifted
        for operand, (a, b) in enumerate(zip(seq.refs[second - self.length], seq.refs[second], strict=True)):
            if a == b:
                if not self._ahead_of_run(a) and a not in seq.signature:
                    return 0
                self.shared.setdefault(b)
                fixed.append(operand)
            elif not self._inside(a, b, second, offset, operand) and not self._carried(a, b):
                nodes = range(self.start + offset, self.start + count * self.length, self.length)
                if not self.ahead.follow(tuple(seq.refs[at][operand] for at in nodes)):
                    return 2 if count > 2 else 0
                fixed.append(operand)
        common = [operand for operand in fixed if seq.refs[second][operand] in self.shared]
        for at in range(second + self.length, self.start + count * self.length, self.length):
            agrees = all(seq.refs[at][k] == seq.refs[second][k] for k in common) and (
                seq.relative[at] == seq.relative[second]
                or all(
                    k in fixed or seq.shifted(a, b, at - second)
                    for k, (a, b) in enumerate(zip(seq.refs[second], seq.refs[at], strict=True))
                )
            )
            if not agrees:
                return (at - self.start) // self.length
        return count

    def _ahead_of_run(self, code: int) -> bool:
        return code // self.seq.stride < self.start

    def _inside(self, a: int, b: int, second: int, offset: int, operand: int) -> bool:
        """(1) and (2) for the second instance, whose node at ``second`` uses ``b``."""
        seq, begin = self.seq, self.start + self.length
        if b // seq.stride < begin or not seq.shifted(a, b, self.length):
            return False
        if b in seq.signature:
            if seq.last_use[b] >= begin + self.length:
                return False
            if b == second * seq.stride + 2 * operand + 1:
                self.own.append((offset, operand))
        return True

    def _carried(self, a: int, b: int) -> bool:
        """(4) for the first two instances: ``b`` is a result of the first, ``a`` is ahead of the run."""
        seq, at = self.seq, b // self.seq.stride
        if b in seq.signature or not self.start <= at < self.start + self.length:
            return False
        ahead = a in seq.signature or self._ahead_of_run(a)
        return ahead and self.carried.setdefault((at - self.start, b % seq.stride // 2), a) == a

    def _closed(self, count: int) -> int:
        """How many instances, from the first, let out nothing but what (6) and (7) allow."""
        always, carried = self._left(0), self.carried.keys()
        if always and not self._goes_on():
            return 0
        for instance in range(count):
            left = self._left(instance)
            if left != always or (always and count < ALIKE):
                possible = instance + (left - carried == always - carried)
                return possible if possible >= ALIKE or not always else 0
        return count

    def _goes_on(self) -> bool:
        """Whether all that an instance hands on follows from what it was handed."""
        begin, made = self.start + self.length, {self._code(*which) for which in self.carried}
        for at in range(begin, begin + self.length):
            if not made.isdisjoint(self.seq.refs[at]):
                made.update(at * self.seq.stride + 2 * index for index in range(len(self.seq.nodes[at].results)))
        return all(self._code(offset + self.length, index) in made for offset, index in self.carried)

    def _code(self, offset: int, index: int) -> int:
        return (self.start + offset) * self.seq.stride + 2 * index

    def _left(self, instance: int) -> frozenset[tuple[int, int]]:
        """Results that are used behind the instance or, those that are carried, behind the next one."""
        seq, begin = self.seq, self.start + instance * self.length
        found = set()
        for at in range(begin, begin + self.length):
            if seq.reach[at] >= begin + self.length:
                for index in range(len(seq.nodes[at].results)):
                    which = at - begin, index
                    behind = begin + (1 + (which in self.carried)) * self.length
                    if seq.last_use.get(at * seq.stride + 2 * index, -1) >= behind:
                        found.add(which)
        return frozenset(found)

    def _collected(self, count: int) -> Iterator[tuple[int, int]]:
        """(7), but for what the last instance hands on."""
        seq, end = self.seq, self.start + count * self.length
        for offset in range(self.length):
            for index in range(len(seq.nodes[self.start + offset].results)):
                last = end - self.length * ((offset, index) in self.carried)
                codes = [(at + offset) * seq.stride + 2 * index for at in range(self.start, last, self.length)]
                if any(code in seq.returned or seq.last_use.get(code, -1) >= end for code in codes):
                    yield offset, index

"""Find the runs of a sequence: which distance, which cut.

Distances at which labels recur come from n-grams; between equal labels at such a distance, operands
either agree, or disagree as those of the first instance may (``entering``), or rule the pair out. Inside
a stretch of pairs that are not ruled out every cut is possible: the one over which the fewest values
pass is taken, then the one that leaves the most instances, then the last.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate

from autopar.passes.fold.run import ALIKE, Run, confirm
from autopar.passes.fold.sequence import Sequence

MULTIPLES = 8  # a period of layers that differ in a shared value only, such as one global layer in six
ATTEMPTS = 16  # cuts that are tried in one place
_FORBIDDEN = 1 << 20  # a cut between two uses of one parameter


def find_runs(seq: Sequence, min_count: int) -> list[Run]:
    """Runs that do not overlap, by position, so that together they save the most nodes.

    What lies between them is searched again until nothing more is found.
    """
    taken: list[Run] = []
    used: set[int] = set()
    open_: list[tuple[int, int]] = [(0, len(seq.nodes))]
    while open_:
        low, high = open_.pop()
        chosen: list[Run] = []
        for run in _best_together(list(_candidates(seq, low, high, min_count))):
            nodes = set().union(*run.instances)
            if used.isdisjoint(nodes):  # two runs may want the same nodes ahead of them
                used |= nodes
                chosen.append(run)
        if chosen:
            taken += chosen
            starts, ends = [run.start for run in chosen], [run.end for run in chosen]
            open_ += [(a, b) for a, b in zip([low, *ends], [*starts, high], strict=True) if b - a > 1]
    return sorted(taken, key=lambda run: run.start)


def _best_together(runs: list[Run]) -> list[Run]:
    """Disjoint runs that save the most nodes, then carry the fewest values, then are the fewest."""
    runs.sort(key=lambda run: (run.end, run.start, run.length))
    ends = [run.end for run in runs]
    worth = [(0, 0, 0)]  # of the best among the first i runs
    takes: list[bool] = []
    for at, run in enumerate(runs):
        saved, carried, count = worth[bisect_right(ends, run.start, hi=at)]
        value = (saved + run.saved, carried - len(run.carried), count - 1)
        takes.append(value > worth[-1])
        worth.append(max(value, worth[-1]))
    chosen: list[Run] = []
    at = len(runs)
    while at:
        if takes[at - 1]:
            chosen.append(runs[at - 1])
            at = bisect_right(ends, runs[at - 1].start, hi=at - 1)
        else:
            at -= 1
    return chosen[::-1]


def _candidates(seq: Sequence, low: int, high: int, min_count: int) -> Iterator[Run]:
    labels = seq.labels[low:high]
    done = set()
    for period in sorted({*_distances(labels), *_rounds(seq, low, high)}):
        for length in range(period, MULTIPLES * period + 1, period):
            stretches = [(low + a, low + b) for a, b in _equal(labels, length)]
            if length in done or not stretches:
                break
            done.add(length)
            saved = 0
            for stretch in stretches:
                for run in _runs(seq, stretch, length, min_count):
                    saved += run.saved
                    yield run
            if saved >= sum(end - begin - period for begin, end in stretches):
                break


def _distances(labels: tuple[int, ...]) -> list[int]:
    """Distances at which enough n-grams of labels recur next, ascending.

    Enough is half of a period; or all n-grams over one place, if that place alone tells the period, such
    as one layer in six that is unlike the others.
    """
    found = set[int]()
    grams, size = list(labels), 1
    while grams:
        last: dict[int, int] = {}
        counts: Counter[int] = Counter()
        for at, gram in enumerate(grams):
            if gram in last:
                counts[at - last[gram]] += 1
            last[gram] = at
        if not counts:
            break
        found.update(d for d, n in counts.items() if 2 * n > d - size or n >= max(size, 16))
        numbers: dict[tuple[int, ...], int] = {}
        wider = zip(grams, grams[size:], grams[2 * size :], grams[3 * size :], strict=False)
        grams, size = [numbers.setdefault(gram, len(numbers)) for gram in wider], 4 * size
    return sorted(found)


def _rounds(seq: Sequence, low: int, high: int) -> set[int]:
    """Distances at which several parameters are used again: of stacks of layers that run more than once."""
    last: dict[int, int] = {}
    counts: Counter[int] = Counter()
    for at in range(low, high):
        for code in seq.refs[at]:
            if code in seq.signature:
                counts[at - last.get(code, at)] += 1
                last[code] = at
    return {distance for distance, times in counts.items() if distance and times > 1}


def _equal(labels: tuple[int, ...], length: int) -> Iterator[tuple[int, int]]:
    """Maximal stretches, at least ``length`` long, of labels that recur ``length`` further on."""
    begin = 0
    differ = (at for at, (a, b) in enumerate(zip(labels, labels[length:], strict=False)) if a != b)
    for at in (*differ, len(labels) - length):
        if at - begin >= length:
            yield begin, at
        begin = at + 1


def _runs(seq: Sequence, stretch: tuple[int, int], length: int, min_count: int) -> Iterator[Run]:
    for begin, end, entering in _possible(seq, stretch, length):
        at = begin
        while end - at >= length:
            run = _best_cut(seq, at, end, entering, length, min_count)
            if run is None:
                at += length
            else:
                yield run
                at = run.end


def _possible(seq: Sequence, stretch: tuple[int, int], length: int) -> Iterator[tuple[int, int, list[int]]]:
    """Parts of the stretch without pairs that are ruled out, each with its ``entering`` nodes."""
    begin, entering = stretch[0], list[int]()
    for at in range(*stretch):
        if seq.relative[at] == seq.relative[at + length]:
            continue
        agrees = True
        for a, b in zip(seq.refs[at], seq.refs[at + length], strict=True):
            if a == b or seq.shifted(a, b, length):
                continue
            if 0 <= b // seq.stride <= at - length and _may_be_ahead(seq, a, b, at, length):
                continue
            agrees = False
            if b < 0 or b in seq.signature or b // seq.stride <= at - length:
                if at - begin >= length:
                    yield begin, at, entering
                begin, entering = at + 1, []
                break
        else:
            if not agrees:
                entering.append(at)
    if stretch[1] - begin >= length:
        yield begin, stretch[1], entering


def _may_be_ahead(seq: Sequence, a: int, b: int, at: int, length: int) -> bool:
    """Whether ``a``, used at ``at``, and ``b``, ``length`` further on, look alike and are used there only."""
    if a < 0 or a in seq.signature or b in seq.signature or a % seq.stride != b % seq.stride:
        return False
    if seq.labels[a // seq.stride] != seq.labels[b // seq.stride] or seq.use_count[a] != seq.use_count[b]:
        return False
    return seq.last_use[a] < at + length and seq.last_use[b] < at + 2 * length


def _best_cut(
    seq: Sequence, begin: int, end: int, entering: list[int], length: int, min_count: int
) -> Run | None:
    """The run that starts less than ``length`` nodes from ``begin``.

    Nodes from ``begin`` to ``end`` have equal partners; those in ``entering`` only as first instance.
    """
    passing = _passing(seq, begin, end, length)
    starts = []
    for start in range(begin, min(begin + length, end - length + 1)):
        if passing[start - begin] >= _FORBIDDEN:
            continue
        next_entry = bisect_left(entering, start + length)
        stop = entering[next_entry] if next_entry < len(entering) else end
        count = (stop + length - start) // length
        if count >= min_count:
            starts.append((passing[start - begin], -count, -start))
    best: Run | None = None
    for _, count, start in sorted(starts)[:ATTEMPTS]:
        run = confirm(seq, -start, length, -count, min_count)
        if run and (best is None or (len(run.carried), -run.count) < (len(best.carried), -best.count)):
            best = run
        if run and run.count == -count:
            break
    return best


def _passing(seq: Sequence, begin: int, end: int, length: int) -> list[int]:
    """How many values pass between the first two instances, if they begin at ``begin + i``, i < length.

    ``_FORBIDDEN`` or more: a parameter does, or a value of the first is used after the second, but behind all only if
    those of the next ones are.
    """
    first, behind = begin + length, end + length
    last: dict[int, int] = {}
    for at in range(first, min(end + length, first + 2 * length)):
        before = seq.refs[at - length]
        for operand, code in enumerate(seq.refs[at]):
            if code // seq.stride >= begin and code != before[operand]:
                last[code] = at
    steps = [0] * (length + 1)
    for at in range(begin, first + length):
        if all(seq.reach[each] >= behind for each in range(at, min(behind, at + ALIKE * length), length)):
            continue
        opens, closes = (
            max(at - first + 1, 0),
            min(at - begin, seq.reach[at] - first - length, length - 1) + 1,
        )
        if opens < closes:
            steps[opens] += _FORBIDDEN
            steps[closes] -= _FORBIDDEN
    for code, at in last.items():
        weight = _FORBIDDEN if code in seq.signature else 1
        opens, closes = max(code // seq.stride + 1 - first, 0), min(at + 1 - first, length)
        if opens < closes:
            steps[opens] += weight
            steps[closes] -= weight
    return list(accumulate(steps[:length]))


def saved_nodes(runs: Iterable[Run]) -> int:
    return sum(run.saved for run in runs)

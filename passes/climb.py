"""What a helper of a search does: it raises bounds of candidates that the search has not come to."""

from __future__ import annotations

import heapq
import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from autopar.ir.errors import LimitReachedError
from autopar.passes.helper import BusyError, Helper
from autopar.passes.outer import Candidate, Rung

LATE = {Rung.STAGED: 2, Rung.LIMITED: 3}  # what is to be raised from there comes after all else
PATIENCE_S = 5.0  # for what the search has begun with and for news of a plan


def climb(
    soon: Sequence[Candidate], last: Sequence[Candidate], raised: Callable[[Candidate], list[Candidate]],
    helper: Helper, staged: Callable[[Candidate], bool] = lambda _: False,
) -> None:  # fmt: skip
    """In the helper: raise the bounds of all that may be faster than the best plan.

    Of what the search comes to soon the highest first, since it begins at the other end, then so of what it comes to
    last. While there is no plan, first bounds of the last that nobody asks how high they must be, then those of the
    others: the search asks as much of them until it has one. Of several helpers each begins with meshes of its own.
    Close bounds come last. ``staged``: whether the search knows what a pipeline's stages take; such are bounded closely
    at once.
    """
    waiting: list[tuple[int, bool, float, int, Candidate, bool]] = []
    numbers, blind = itertools.count(), math.isinf(helper.best.best_ns)

    def push(candidate: Candidate, *, near: bool, at_once: bool = False) -> None:
        rank = candidate.rank[0] if blind and not near else -candidate.rank[0]
        # a close bound, and how close it is proven to be, follow from a plan that may not be the best for long
        turn = 0 if at_once else LATE.get(candidate.rung, int(near == blind))
        others = zlib.crc32(str(candidate.full).encode()) % helper.several != helper.number
        heapq.heappush(waiting, (turn, others, rank, next(numbers), candidate, near))

    def followed(candidate: Candidate) -> list[Candidate]:
        """As far as the search has come, which takes no work."""
        left = [candidate]
        while len(left) == 1 and left[0].rung < Rung.STAGED:
            try:
                left = raised(left[0])
            except (BusyError, LimitReachedError):
                break
        return left

    for one in soon:
        push(one, near=True)
    for one in last:
        push(one, near=False)
    parked: list[tuple[Candidate, bool]] = []
    while waiting or parked:
        if helper.hear(0.0 if waiting else PATIENCE_S) and not blind:
            over = [item for item in waiting if staged(item[4])]
            waiting = [item for item in waiting if item not in over]
            heapq.heapify(waiting)
            for *_, candidate, near in over:
                for left in followed(candidate):
                    push(left, near=near, at_once=left.rung == Rung.STAGED)
        if blind != math.isinf(helper.best.best_ns) or not waiting:
            again = [*parked, *(item[4:] for item in waiting)]
            if blind and not math.isinf(helper.best.best_ns):  # how high it must be decides what is asked from here on
                begun = [(one, near) for one, near in again if one.rung <= Rung.PRIME]
                known = {_which(one) for one, _ in begun}
                further = [(one, near) for one, near in again if _which(one) not in known]
                again = [*((replace(one, rung=min(one.rung, Rung.POOLED)), near) for one, near in begun), *further]
            blind = math.isinf(helper.best.best_ns)
            parked, waiting = [], []
            for one, near in again:
                push(one, near=near)
        *_, candidate, near = heapq.heappop(waiting)
        if blind and candidate.rung == Rung.PRIME:
            parked.append((candidate, near))
            if not near:
                continue
        if candidate.rung <= Rung.LIMITED and candidate.rank[0] < helper.best.best_ns:
            try:
                for left in raised(candidate):
                    push(left, near=near)
            except LimitReachedError:
                continue
            except BusyError:
                parked.append((candidate, near))


def _which(candidate: Candidate) -> tuple[object, ...]:
    """What tells candidates apart, whatever their bounds."""
    return candidate.full, candidate.count, candidate.more, candidate.schedule, candidate.uneven

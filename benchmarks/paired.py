"""Two ways to do the same work, measured in turns; the median of their ratios and how sure it is.

A machine that others use, or that grows warm, slows both halves of a pair alike; a ratio of two separate runs would
hold the difference between then and now. What others take only ever adds, in bursts shorter than a step: each half of
a pair is the fastest of a few runs.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

WARM_UP = 3
RUNS = 5  # of each half of a pair; with three, other tenants widened the interval of a step that waits to ± 0.05
CONFIDENCE = 0.95
LOSS_TOLERANCE = 1e-5


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median and the interval that holds the true one with ``CONFIDENCE``, by order statistics."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}] ± {self.half_width:.3f}"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """``ours`` ÷ ``theirs``, in seconds on the clock (the slowest rank) and in CPU seconds (all ranks)."""

    pairs: int
    ours_s: float
    theirs_s: float
    ratio: Estimate
    cpu_ratio: Estimate
    loss: float

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "half_width": self.ratio.half_width}


def compare(
    ours: Callable[[], Tensor], theirs: Callable[[], Tensor], *, pairs: int, tolerance: float = LOSS_TOLERANCE
) -> Compared:
    """Measure both in turns: ours, theirs, theirs, ours, ours, theirs and so on, so that a drift falls on both alike.

    A collective of all ranks.
    Raises AssertionError if their losses differ by more than ``tolerance`` of them: then they do not do the same work.
    """
    for _ in range(WARM_UP):
        loss, wanted = float(ours()), float(theirs())
    assert math.isclose(loss, wanted, rel_tol=tolerance), f"loss {loss} against {wanted}"
    found: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for _ in range(pairs):
        halves: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
        for turn in range(RUNS):
            for half in ((0, 1), (1, 0))[turn % 2]:
                halves[half].append(_seconds((ours, theirs)[half]))
        found.append((_fastest(halves[0]), _fastest(halves[1])))
    return Compared(
        pairs=pairs,
        ours_s=statistics.median(ours[0] for ours, _ in found),
        theirs_s=statistics.median(theirs[0] for _, theirs in found),
        ratio=estimate([ours[0] / theirs[0] for ours, theirs in found]),
        cpu_ratio=estimate([ours[1] / theirs[1] for ours, theirs in found]),
        loss=loss,
    )


def _fastest(runs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(clock for clock, _ in runs), min(cpu for _, cpu in runs)


def estimate(values: Sequence[float]) -> Estimate:
    """Requires at least 6 values: fewer have no interval of this confidence."""
    ordered, n = sorted(values), len(values)
    if n < 6:
        raise ValueError(f"{n} values: at least 6 are needed")
    below, rank = 0.0, 0
    while (below := below + math.comb(n, rank) / 2**n) <= (1 - CONFIDENCE) / 2:
        rank += 1
    return Estimate(median=statistics.median(ordered), low=ordered[rank - 1], high=ordered[n - rank])


def _seconds(run: Callable[[], Tensor]) -> tuple[float, float]:
    """(clock of the slowest rank, CPU of all ranks) of one run."""
    dist.barrier()
    clock, cpu = time.perf_counter(), time.process_time()
    run()
    mine = (time.perf_counter() - clock, time.process_time() - cpu)
    slowest, all_cpu = torch.tensor(mine[0]), torch.tensor(mine[1])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    dist.all_reduce(all_cpu)
    return float(slowest), float(all_cpu)

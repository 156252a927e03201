"""Seconds of a call on a device. A GPU's own are apart from those that the host takes to start its work.

In training the host runs ahead of a GPU: a long operation costs what its kernels take, and a short one what it takes to
start them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

LEAST_S = 0.05  # each call is repeated for so long
MOST = 20  # calls in one row on a GPU: its queue takes about a thousand kernels
ROW_S = 0.02
ROWS = 3
CHAIN = 32  # operations, so that what ends a backward is shared by many
AHEAD = 8192  # rows and columns of a product that keeps a GPU busy


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Median over repetitions; of a GPU without the host's time, where the call does not wait for it."""
    if device.type == "cpu":
        timer = Timer("call()", globals={"call": call}, timer=time.perf_counter)  # the usual one would wake a GPU
        return timer.blocked_autorange(min_run_time=LEAST_S).median
    ahead = _ahead(device)
    calls, waits = 1, 1
    for _ in range(2):  # the first to find out how many calls, and how long the host takes for them
        found = [_row(call, calls, ahead, waits, device) for _ in range(ROWS)]
        taken = statistics.median(gpu_s for gpu_s, _ in found)
        calls = max(1, min(MOST, round(ROW_S / taken)))
        host = calls * max(host_s for _, host_s in found)
        waits = 1 + math.ceil(host / _row(ahead, 1, ahead, 1, device)[0])
    return taken


def host_s(device: torch.device) -> float:
    """How long the host takes to start one operation of a GPU, forward or backward; 0 on a CPU, where it does all."""
    if device.type == "cpu":
        return 0.0
    x, slope = torch.ones(8, device=device, requires_grad=True), torch.ones(8, device=device)

    def chain() -> tuple[Tensor, ...]:
        y = x
        for _ in range(CHAIN):
            y = torch.mul(y, x)
        return torch.autograd.grad(y, x, slope)

    timer = Timer("call()", globals={"call": chain})
    return timer.blocked_autorange(min_run_time=LEAST_S).median / (4 * CHAIN)  # backward two products and a sum


def _ahead(device: torch.device) -> Callable[[], object]:
    """Work of a GPU that the host starts at once."""
    matrix = torch.ones(AHEAD, AHEAD, dtype=torch.float16, device=device)
    out = torch.empty_like(matrix)
    return lambda: torch.mm(matrix, matrix, out=out)


def _row(
    call: Callable[[], object], calls: int, ahead: Callable[[], object], waits: int, device: torch.device
) -> tuple[float, float]:
    """(the GPU's, the host's) seconds of one of so many calls, which wait in the GPU's queue behind other work."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    for _ in range(waits):
        ahead()
    first.record()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    host = time.perf_counter() - start
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3 / calls, host / calls

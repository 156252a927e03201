"""Seconds of a call on a device. A GPU's own are apart from those that the host takes to start its work.

In training the host runs ahead of a GPU: a long operation costs what its kernels take, and a short one what it takes to
start them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

LEAST_S = 0.05  # each call is repeated for so long
LONG_S = 2e-3  # of a call beside which the host's time is nothing
CAPTURED = 20  # calls in a graph
CHAIN = 32  # operations, so that what ends a backward is shared by many


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Median over repetitions; of a GPU without the host's time, if the call can be captured in a graph."""
    if device.type == "cpu":
        return _median(call, timer=time.perf_counter)  # the usual one would wake a GPU
    taken = Timer("call()", globals={"call": call}).timeit(3).mean
    if taken > LONG_S:
        return _median(call)
    try:
        graph = _captured(call, device)
    except RuntimeError:  # it waits for the GPU
        return _median(call)
    return _median(graph.replay) / CAPTURED


def host_s(device: torch.device) -> float:
    """How long the host takes to start one operation of a GPU, forward or backward; 0 on a CPU, where it does all."""
    if device.type == "cpu":
        return 0.0
    x, ahead = torch.ones(8, device=device, requires_grad=True), torch.ones(8, device=device)

    def chain() -> tuple[Tensor, ...]:
        y = x
        for _ in range(CHAIN):
            y = torch.mul(y, x)
        return torch.autograd.grad(y, x, ahead)

    return _median(chain) / (4 * CHAIN)  # backward two products and a sum


def _median(call: Callable[[], object], **clock: Any) -> float:
    return Timer("call()", globals={"call": call}, **clock).blocked_autorange(min_run_time=LEAST_S).median


def _captured(call: Callable[[], object], device: torch.device) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CAPTURED):
            call()
    return graph

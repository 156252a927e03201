"""What each process of a calibration measures: rates of its device, all at once as in training, then links."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from autopar.calibrating.probes import MOVED, attention, copied, ladder, mixed, product
from autopar.calibrating.timing import host_s, seconds_of
from autopar.ir.errors import ProbeError
from autopar.passes.cores import usable_cores
from autopar.runtime.collectives import all_gather, reduce_scatter
from autopar.runtime.dtypes import TORCH_DTYPES

SLOW_S = 0.15  # no larger size is tried after one that takes so long
PRODUCTS = (64, 2, 16384)  # first size, times the one before, at most
ROWS = (128, 2, 16384)
NUMELS = {"cpu": (2**14, 4, 2**24), "cuda": (2**14, 4, 2**26)}
COPIED_BYTES = {"cpu": 2**27, "cuda": 2**30}
PAYLOAD_BYTES = {"cpu": (2**12, 4, 2**26), "cuda": (2**12, 4, 2**28)}
LOST = timedelta(minutes=2)  # nothing takes so long but a process that is gone
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of the container
PEAKS = {name: TORCH_DTYPES[name] for name in ("f64", "f32", "bf16", "f16")}
MIB = 2**20

Points = dict[float, float]  # by size


@dataclass(kw_only=True)
class Measured:
    """Seconds and rates of one device among so many that worked at once.

    ``dtype``: of all but products. ``flops_s``: of matrix products by element type and flops. ``attention_s``: by
    flops. ``seconds``: of operations by target and bytes. ``collective_s``: by kind and payload bytes of a rank, of
    ``processes`` ranks.
    """

    device: str
    processes: int
    memory_bytes: int
    dtype: str
    copy_bytes_s: float = 0.0
    mixed_elements_s: float = 0.0
    flops_s: dict[str, Points] = field(default_factory=dict)
    attention_s: Points = field(default_factory=dict)
    seconds: dict[str, Points] = field(default_factory=dict)
    collective_s: dict[str, Points] = field(default_factory=dict)


def run(rank: int, say: Callable[[object], None], kind: str) -> None:
    """Measure; rank 0 tells what, any rank that it failed (ProbeError). ``kind``: ``cpu`` or ``cuda``."""
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    try:
        for what in _measured(device):
            if rank == 0:
                say(what)
    except (RuntimeError, MemoryError, OSError) as error:  # out of memory, a lost connection, no such kernel
        lines = str(error).splitlines() or [type(error).__name__]
        say(ProbeError(f"the measurement failed on {device} in process {rank}: {lines[0]}"))


def _measured(device: torch.device) -> Iterator[str | Measured]:
    group = None
    if device.type == "cuda":
        torch.cuda.set_device(device)
        group = dist.new_group(backend="nccl", timeout=LOST)
    name = _name(device)
    every: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(every, name)
    if len(set(every)) > 1:
        raise RuntimeError(f"devices differ: {', '.join(map(str, every))}; measure one kind at a time")
    found = Measured(
        device=name, processes=len(every), memory_bytes=_memory_bytes(device), dtype=_main(device)
    )
    yield from _steps(device, group, found)
    yield found


def _main(device: torch.device) -> str:
    """The element type that most training on such a device computes in."""
    if device.type == "cpu":
        return "f32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "f16"


def _steps(device: torch.device, group: dist.ProcessGroup | None, found: Measured) -> Iterator[str]:
    """Each measures something and yields what comes next."""
    kind, main = device.type, PEAKS[found.dtype]
    together = partial(_together, device=device)
    least_s = statistics.median(_of_all(host_s(device)))
    yield "copies"
    size = COPIED_BYTES[kind]
    found.copy_bytes_s = 2 * size / together(copied(size, device))
    yield "operands of two shapes"
    *_, numel = ladder(*NUMELS[kind])
    found.mixed_elements_s = numel / together(mixed(numel, main, device))
    for name, dtype in PEAKS.items():
        yield f"products in {name}"
        if name == "bf16" and kind == "cuda" and found.dtype != name:
            continue  # emulated
        points = found.flops_s[name] = {}
        for n in ladder(*PRODUCTS):
            call, flops = product(n, dtype, device)
            taken = max(together(call), least_s)
            points[flops] = flops / taken
            if taken > SLOW_S:
                break
    yield "attention"
    for rows in ladder(*ROWS):
        call, work = attention(rows, main, device)
        taken = together(call)
        found.attention_s[work.flops / work.passes] = max(taken / work.passes, least_s)
        if taken > SLOW_S:
            break
    for target, make in MOVED.items():
        yield target
        points = found.seconds[target] = {}
        for n in ladder(*NUMELS[kind]):
            probe = make(n, main, device)
            work = probe.work()
            taken = together(probe.step())
            points[work.bytes / work.passes] = max(taken / work.passes, least_s)
            if taken > SLOW_S:
                break
    for name, collective in COLLECTIVES.items() if found.processes > 1 else ():
        yield name
        found.collective_s[name] = {
            size: _collective_s(collective, size, device, group) for size in ladder(*PAYLOAD_BYTES[kind])
        }


def _together(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call while all processes make it; the median of theirs, so that all go on alike."""
    call()
    dist.barrier()
    return statistics.median(_of_all(seconds_of(call, device)))


def _of_all(mine: float) -> list[float]:
    every = [torch.zeros(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(every, torch.tensor([mine], dtype=torch.float64))
    return [float(each) for each in every]


Collective = Callable[[torch.Tensor, "dist.ProcessGroup | None"], Callable[[], object]]


def _all_gather(x: torch.Tensor, group: dist.ProcessGroup | None) -> Callable[[], object]:
    out = torch.empty(len(x) * dist.get_world_size(), dtype=x.dtype, device=x.device)
    return lambda: all_gather(out, x, group=group)


def _reduce_scatter(x: torch.Tensor, group: dist.ProcessGroup | None) -> Callable[[], object]:
    out = torch.empty(len(x) // dist.get_world_size(), dtype=x.dtype, device=x.device)
    return lambda: reduce_scatter(out, x, group=group)


def _all_to_all(x: torch.Tensor, group: dist.ProcessGroup | None) -> Callable[[], object]:
    out = torch.empty_like(x)
    return lambda: dist.all_to_all_single(out, x, group=group)


COLLECTIVES: dict[str, Collective] = {
    "all_reduce": lambda x, group: lambda: dist.all_reduce(x, group=group),
    "all_gather": _all_gather, "reduce_scatter": _reduce_scatter, "all_to_all": _all_to_all,
}  # fmt: skip


def _collective_s(
    collective: Collective, size: int, device: torch.device, group: dist.ProcessGroup | None
) -> float:
    """Seconds of one with ``size`` bytes of payload on each rank, of the slowest rank."""
    world = dist.get_world_size()
    numel = -(-size // 4 // world) * world
    call = collective(torch.zeros(numel, dtype=torch.float32, device=device), group)
    repeats = max(3, min(100, 2**24 // size))
    taken = []
    for _ in range(3):
        call()
        _synchronize(device)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        _synchronize(device)
        taken.append((time.perf_counter() - start) / repeats)
    return max(_of_all(statistics.median(taken)))


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _memory_bytes(device: torch.device) -> int:
    """Of a GPU, or a core's part of the machine or its container."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = CGROUP_LIMIT.read_text().strip() if CGROUP_LIMIT.is_file() else "max"
    return min(there, int(limit) if limit.isdigit() else there) // usable_cores()

"""What each process of a calibration measures: rates of its device, all at once as in training, then links."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch.utils.benchmark import Timer

from autopar.calibrating.probes import MOVED, attention, copied, ladder, product
from autopar.ir.errors import ProbeError
from autopar.runtime.collectives import all_gather, reduce_scatter

LEAST_S = 0.05  # each size is run for so long
SLOW_S = 0.15  # no larger size is tried after one that takes so long
PRODUCTS = (64, 2, 16384)  # first size, times the one before, last
ROWS = (128, 2, 16384)
NUMELS = (2**14, 8, 2**27)
COPIED_BYTES = {"cpu": 2**27, "cuda": 2**30}
PAYLOAD_BYTES = (2**12, 16, 2**26)
CURVE = {"cpu": "f32", "cuda": "bf16"}  # the element type of curves
PEAKS = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
MIB = 2**20

Points = dict[float, float]  # by size


@dataclass(kw_only=True)
class Measured:
    """Seconds and rates of one device among so many that worked at once.

    ``flops_s``: of matrix products by element type and flops; ``attention_flops_s`` by flops. ``seconds``: of
    operations by target and bytes. ``collective_s``: by kind and payload bytes of a rank, of ``processes`` ranks.
    """

    device: str
    processes: int
    memory_bytes: int
    copy_bytes_s: float = 0.0
    flops_s: dict[str, Points] = field(default_factory=dict)
    attention_flops_s: Points = field(default_factory=dict)
    seconds: dict[str, Points] = field(default_factory=dict)
    collective_s: dict[str, Points] = field(default_factory=dict)


def run(rank: int, say: Callable[[object], None], kind: str) -> None:
    """Measure, rank 0 tells. ``kind``: ``cpu`` or ``cuda``. Raises ProbeError where the device fails."""
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    group = None
    if kind == "cuda":
        torch.cuda.set_device(device)
        group = dist.new_group(backend="nccl")
    found = Measured(device=_name(device), processes=dist.get_world_size(), memory_bytes=_memory_bytes(device))
    try:
        for what in _steps(device, group, found):
            if rank == 0:
                say(what)
    except RuntimeError as error:  # of torch: out of memory, no such kernel, a lost connection
        raise ProbeError(f"the measurement failed on {device}: {str(error).splitlines()[0]}") from None
    if rank == 0:
        say(found)


def _steps(device: torch.device, group: dist.ProcessGroup | None, found: Measured) -> Iterator[str]:
    """Each measures something and yields what comes next."""
    main = PEAKS[CURVE[device.type]]
    yield "copies"
    size = COPIED_BYTES[device.type]
    found.copy_bytes_s = 2 * size / _together(copied(size, device))
    for name, dtype in PEAKS.items():
        yield f"products in {name}"
        found.flops_s[name] = _rates(partial(product, dtype=dtype, device=device), PRODUCTS)
    yield "attention"
    found.attention_flops_s = _rates(partial(attention, dtype=main, device=device), ROWS)
    for target, make in MOVED.items():
        yield target
        points = found.seconds[target] = {}
        for n in ladder(*NUMELS):
            probe = make(n, main, device)
            work = probe.work()
            taken = _together(probe.step())
            points[work.bytes / (2 if work.backward else 1)] = taken / (2 if work.backward else 1)
            if taken > SLOW_S:
                break
    for name, collective in COLLECTIVES.items() if found.processes > 1 else ():
        yield name
        found.collective_s[name] = {
            size: _collective_s(collective, size, device, group) for size in ladder(*PAYLOAD_BYTES)
        }


def _rates(make: Callable[[int], tuple[Callable[[], object], int]], sizes: tuple[int, int, int]) -> Points:
    """Flops a second by flops."""
    found: Points = {}
    for n in ladder(*sizes):
        call, flops = make(n)
        taken = _together(call)
        found[flops] = flops / taken
        if taken > SLOW_S:
            break
    return found


def _together(call: Callable[[], object]) -> float:
    """Seconds of a call while all processes make it; the median of theirs, so that all go on alike."""
    call()
    dist.barrier()
    mine = Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=LEAST_S).median
    return statistics.median(_of_all(mine))


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
    """Of a GPU, or of this process's part of the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // dist.get_world_size()

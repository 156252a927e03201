"""``ParallelModule.profile``: where the time of a step goes, measured on this machine, beside what the plan says.

Exposed communication is time in which a rank only waits for others. On a CPU that is what the process spends in
waits for collectives (a rank that is early waits for one that is late: that counts too), on a GPU what communication
kernels run while no other kernel does. Waits for what a stage sends or receives are the bubble of a pipeline.
The optimizer is the user's: its time and its state are in no figure, on neither side.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from autopar.ir.errors import UsageError
from autopar.ir.plan import Plan
from autopar.runtime import torch_private
from autopar.runtime.live_memory import LiveMemory
from autopar.runtime.reading import part_of

Span = tuple[float, float]
COMPILED_WAIT = "_c10d_functional::wait_tensor"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Seconds of a step and bytes at its peak; the largest of all ranks each, so the parts may exceed the step."""

    step_s: float
    compute_s: float
    exposed_comm_s: float
    bubble_s: float
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """``measured`` over ``steps`` steps, the median; ``planned``: None for a module without a plan."""

    steps: int
    measured: Figures
    planned: Figures | None

    def __str__(self) -> str:
        rows = [
            ("step", "step_s", 1e3, "ms"), ("  compute", "compute_s", 1e3, "ms"),
            ("  exposed communication", "exposed_comm_s", 1e3, "ms"), ("  bubble", "bubble_s", 1e3, "ms"),
            ("peak memory", "peak_bytes", 1e-6, "MB"),
        ]  # fmt: skip
        lines = [f"{f'median of {self.steps} steps':<25} {'measured':>12} {'planned':>12}"]
        for title, name, factor, unit in rows:
            cells = [
                "-" if figures is None else f"{getattr(figures, name) * factor:,.1f} {unit}"
                for figures in (self.measured, self.planned)
            ]
            lines.append(f"{title:<25} {cells[0]:>12} {cells[1]:>12}")
        return "\n".join(lines)


def profile(
    module: nn.Module, step: Callable[[], object], steps: int, plan: Plan | None, *, compiled: bool
) -> StepProfile:
    """Run ``step`` on ``module`` for the figures; its gradients and buffers are afterwards what they were.

    Runs 2 steps more than ``steps``: one to warm up, one to look at memory. A collective of all ranks. Raises
    UsageError for fewer than 1 step.
    """
    if steps < 1:
        raise UsageError(f"profile of {steps} steps: at least 1 is needed")
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    with _kept(module):

        def alone() -> None:
            for parameter in module.parameters():
                parameter.grad = None
            step()

        alone()
        on_device = device.type == "cuda"
        found = _of_device(alone, steps, device) if on_device else _of_host(alone, steps, compiled=compiled)
        peak = _peak_of_device(alone, module, device) if on_device else _peak_of_host(alone, module)
    figures = torch.tensor([*found, float(peak)], dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.all_reduce(figures, op=dist.ReduceOp.MAX)
    step_s, compute_s, exposed_s, bubble_s, peak_bytes = figures.tolist()
    return StepProfile(
        steps=steps, planned=None if plan is None else planned(plan),
        measured=Figures(
            step_s=step_s, compute_s=compute_s, exposed_comm_s=exposed_s, bubble_s=bubble_s, peak_bytes=int(peak_bytes)
        ),
    )  # fmt: skip


def planned(plan: Plan) -> Figures:
    """What the plan predicts of the same quantities; memory without the optimizer's state, time with its step."""
    time_s = plan.step_time_s
    return Figures(
        step_s=plan.objective_s, compute_s=time_s.compute, exposed_comm_s=time_s.exposed_comm, bubble_s=time_s.bubble,
        peak_bytes=max(plan.memory.peak_bytes) - plan.memory.parts.get("optimizer", 0),
    )  # fmt: skip


@contextmanager
def _kept(module: nn.Module) -> Iterator[None]:
    """Gradients and buffers are put back."""
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    buffers = [(part := part_of(buffer).detach(), part.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for held, before in buffers:
                held.copy_(before)


def _of_host(step: Callable[[], None], steps: int, *, compiled: bool) -> tuple[float, float, float, float]:
    """(step, compute, exposed, bubble): medians of this process."""
    rows = []
    for _ in range(steps):
        collectives, messages, whole = [0.0], [0.0], [0.0]

        def timed(whole: list[float] = whole) -> None:
            start = time.perf_counter()
            step()
            whole[0] = time.perf_counter() - start

        with _timed_waits(collectives, messages):
            in_graphs = _waits_of_graphs(timed) if compiled else _nothing(timed)
        exposed = collectives[0] + in_graphs
        rows.append((whole[0], max(0.0, whole[0] - exposed - messages[0]), exposed, messages[0]))
    step_s, compute_s, exposed_s, bubble_s = (statistics.median(column) for column in zip(*rows, strict=True))
    return step_s, compute_s, exposed_s, bubble_s


@contextmanager
def _timed_waits(collectives: list[float], messages: list[float]) -> Iterator[None]:
    """Seconds of this process in waits are added to the first entries."""
    wait = dist.Work.wait

    def timed(work: dist.Work, *args: object, **kwargs: object) -> object:
        start = time.perf_counter()
        try:
            return wait(work, *args, **kwargs)  # type: ignore[arg-type]
        finally:
            into = messages if torch_private.is_message(work) else collectives
            into[0] += time.perf_counter() - start

    dist.Work.wait = timed  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        dist.Work.wait = wait  # type: ignore[method-assign]


def _nothing(step: Callable[[], None]) -> float:
    step()
    return 0.0


def _waits_of_graphs(step: Callable[[], None]) -> float:
    """Seconds of waits in compiled graphs, which call no ``Work``."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as seen:
        step()
    return float(sum(event.cpu_time_total for event in seen.key_averages() if event.key == COMPILED_WAIT)) / 1e6


def _of_device(step: Callable[[], None], steps: int, device: torch.device) -> tuple[float, float, float, float]:
    """Timed without the profiler; split as the kernels of as many steps under it lie."""
    seconds = []
    for _ in range(steps):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        step()
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as seen:
        for _ in range(steps):
            step()
        torch.cuda.synchronize(device)
    kernels = [
        (event.name, (event.time_range.start / 1e6, event.time_range.end / 1e6))
        for event in seen.events() or () if event.device_type.name == "CUDA"
    ]  # fmt: skip
    compute_s, exposed_s = split_kernels(kernels)
    return statistics.median(seconds), compute_s / steps, exposed_s / steps, 0.0


def split_kernels(kernels: Iterable[tuple[str, Span]]) -> tuple[float, float]:
    """(time in which something computes, time in which only communication runs) of kernels by name."""
    sends: list[Span] = []
    computes: list[Span] = []
    for name, span in kernels:
        (sends if "nccl" in name.lower() else computes).append(span)
    computing = _covered(computes)
    return computing, _covered([*sends, *computes]) - computing


def _covered(spans: Sequence[Span]) -> float:
    """Length of the union."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def _peak_of_host(step: Callable[[], None], module: nn.Module) -> int:
    held = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
    with LiveMemory(held) as live:
        step()
    return int(live.peak_bytes)


def _peak_of_device(step: Callable[[], None], module: nn.Module, device: torch.device) -> int:
    """The rise of the allocator's peak in a step, over what the module itself holds."""
    for parameter in module.parameters():
        parameter.grad = None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    own = sum(part_of(t).nbytes for t in (*module.parameters(), *module.buffers()))
    return int(own + torch.cuda.max_memory_allocated(device) - before)

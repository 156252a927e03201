"""``python -m benchmarks.gpu``: plain PyTorch against autopar on one GPU, in bf16, compiled and not.

The largest LLaMA of a list that fits is trained with AdamW, NCCL initialised, a world of 1. Both ways are measured in
turns, each built anew for its turn since two of them do not fit. Written: tokens a second, the ratio, memory as
planned and as the allocator saw it, and ``model.profile``.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks import report
from benchmarks.llama import FOR_A_GPU, TINY, Size, batch, llama, parameters

WARM_UP = 3
LOSS_TOLERANCE = 2e-2  # in bf16 sums in another order differ in the third digit


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One way to train, built, warmed up and measured. ``planned_bytes``: None without a plan."""

    seconds: tuple[float, ...]
    loss: float
    peak_bytes: int
    planned_bytes: int | None = None
    profile: str = ""


def plain(size: Size, device: torch.device, steps: int, compile: str | None) -> Turn:
    model: Any = llama(size, dtype=torch.bfloat16, device=str(device))
    if compile is not None:
        for layer in model.model.layers:
            layer.compile(backend=compile)
    part = _there(batch(size), device)

    def step() -> Tensor:
        loss: Tensor = model(**part).loss
        loss.backward()
        return loss.detach()

    seconds, loss, peak = _measured(model, step, device, steps)
    return Turn(seconds=seconds, loss=loss, peak_bytes=peak)


def ours(size: Size, device: torch.device, steps: int, compile: str | None) -> Turn:
    import autopar

    whole = _there(batch(size), device)
    made = autopar.parallelize(
        llama(size, dtype=torch.bfloat16, device=str(device)), whole, num_microbatches=1, recompute="none",
        compile=compile or False,
    )  # fmt: skip
    part = made.shard_inputs(whole)
    seconds, loss, peak = _measured(made, lambda: made.train_step(**part), device, steps)
    planned = made.plan.memory.peak_bytes[0]
    return Turn(
        seconds=seconds, loss=loss, peak_bytes=peak, planned_bytes=planned, profile=str(made.profile(steps, **part))
    )


def _there(given: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in given.items()}


def _measured(
    model: nn.Module, step: Callable[[], Tensor], device: torch.device, steps: int
) -> tuple[tuple[float, ...], float, int]:
    """(seconds of each step with its update, first loss, peak bytes)."""
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=on_gpu)
    seconds, first = [], math.nan
    for index in range(WARM_UP + steps):
        if index == WARM_UP and on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
        _wait(device)
        start = time.perf_counter()
        loss = step()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        _wait(device)
        seconds.append(time.perf_counter() - start)
        first = float(loss) if index == 0 else first
    return tuple(seconds[WARM_UP:]), first, torch.cuda.max_memory_allocated(device) if on_gpu else 0


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compare(size: Size, device: torch.device, steps: int, turns: int, compile: str | None) -> dict[str, Any]:
    """Both ways in turns. Raises torch.OutOfMemoryError, or autopar's InfeasibleError, where one does not fit."""
    found: dict[str, list[Turn]] = {"plain": [], "ours": []}
    for _ in range(turns):
        for name, way in (("plain", plain), ("ours", ours)):
            found[name].append(way(size, device, steps, compile))
            gc.collect()
            torch.compiler.reset()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    losses = [turn.loss for turn in (*found["plain"], *found["ours"])]
    assert math.isclose(min(losses), max(losses), rel_tol=LOSS_TOLERANCE), f"not the same work: losses {losses}"
    speed = {
        name: size.tokens / statistics.median(s for turn in made for s in turn.seconds) for name, made in found.items()
    }
    last = found["ours"][-1]
    return {
        "compiled": compile, "plain_tokens_per_s": speed["plain"], "autopar_tokens_per_s": speed["ours"],
        "ratio_of_throughput": speed["ours"] / speed["plain"], "plain_peak_bytes": found["plain"][-1].peak_bytes,
        "autopar_peak_bytes": last.peak_bytes, "planned_peak_bytes": last.planned_bytes, "profile": last.profile,
    }  # fmt: skip


def fitting(sizes: Sequence[Size], device: torch.device, steps: int, turns: int, backend: str) -> dict[str, Any]:
    """The largest size at which both ways fit, eager and compiled. Raises InfeasibleError if none does."""
    from autopar.errors import InfeasibleError

    for size in sizes:
        print(f"{size}: {size.tokens} tokens a step", flush=True)
        try:
            runs = []
            for compile in (None, backend):
                runs.append(compare(size, device, steps, turns, compile))
                print(_told(runs[-1]), flush=True)
        except (torch.OutOfMemoryError, InfeasibleError) as error:
            print(f"  does not fit: {str(error).splitlines()[0]}", flush=True)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
            continue
        count = parameters(llama(size, device="meta"))
        return {"model": asdict(size), "parameters": count, "steps": steps, "turns": turns, "runs": runs}
    raise InfeasibleError("no size of the list fits this device")


def _told(run: dict[str, Any]) -> str:
    memory = ", ".join(f"{name} {run[f'{name}_peak_bytes'] / 1e9:.2f} GB" for name in ("plain", "autopar", "planned"))
    how = f"compiled ({run['compiled']})" if run["compiled"] else "eager"
    speed = f"plain {run['plain_tokens_per_s']:,.0f} tokens/s, autopar {run['autopar_tokens_per_s']:,.0f} tokens/s"
    return f"  {how}: {speed}, ratio {run['ratio_of_throughput']:.3f}; peak {memory}\n{run['profile']}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write ``results/gpu.json``; 2 where there is no GPU."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a tiny model, does it run?")
    parser.add_argument("--steps", type=int, default=10, help="measured steps a turn")
    parser.add_argument("--turns", type=int, default=3, help="turns of each way")
    parser.add_argument("--at-most", type=float, default=math.inf, help="so many parameters, to be done sooner")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="folder of the result")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here; --device cpu tries the command on a tiny model", file=sys.stderr)
        return 2
    from autopar.hardware import start_process_group

    if options.device == "cpu" and not dist.is_initialized():  # a machine with a GPU would start NCCL
        store = dist.HashStore()  # type: ignore[attr-defined]  # public, but not in __all__
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    device = start_process_group()
    dist.all_reduce(torch.ones(1, device=device))  # its communicator, before anything is measured
    try:
        listed: tuple[Size, ...] = FOR_A_GPU if options.device == "cuda" else (TINY,)
        sizes = tuple(size for size in listed if parameters(llama(size, device="meta")) <= options.at_most)
        found = fitting(sizes, device, options.steps, options.turns, options.backend)
    finally:
        dist.destroy_process_group()
    where = report.write("gpu" if options.device == "cuda" else "gpu-tried-on-cpu", found, options.out)
    print(f"written to {where}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

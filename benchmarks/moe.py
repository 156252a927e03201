"""``python -m benchmarks.moe``: ``autopar.nn.MoE`` against other implementations, forward and backward, in pairs.

The others are Mixtral's block of Hugging Face with each of its ways to run experts, and the loop that one writes first.
Each case is compared with whichever of them is the fastest there; the ratio is to be at most 1.00, within its interval.
With 64 experts for 8, tokens and work the same, the layer is to take at most 1.3 times as long. Each case has a process
of its own: what one leaves behind in memory may slow another down.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor

from benchmarks import report
from benchmarks.moe_layers import Size, ours, rivals, step
from benchmarks.paired import Compared, compare

MIN_PAIRS = 6
RATIO, MORE_EXPERTS = 1.00, 1.30  # what each ratio may be
MANY, FEW = 64, 8  # experts of the second question
LOOKS = 3  # runs of each rival to find the fastest
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2}  # of the outputs' mean square

ON_CPU = (
    Size(batch=8, length=512, width=512, inner=1024, experts=8),
    Size(batch=8, length=512, width=512, inner=1024, experts=64),
    Size(batch=8, length=512, width=512, inner=256, experts=64, top_k=8),
    Size(batch=1, length=16, width=512, inner=1024, experts=8),
)
ON_GPU = (
    Size(batch=4, length=4096, width=4096, inner=14336, experts=8),  # Mixtral 8x7B
    Size(batch=4, length=4096, width=2048, inner=768, experts=128, top_k=8),  # Qwen3-30B-A3B
    Size(batch=4, length=4096, width=1024, inner=4096, experts=64),
    Size(batch=1, length=64, width=2048, inner=768, experts=128, top_k=8),
)
TINY = (Size(batch=2, length=8, width=16, inner=8, experts=4),)


def against_the_best(size: Size, dtype: torch.dtype, device: torch.device, pairs: int) -> tuple[str, Compared]:
    """The name of the fastest rival and the comparison with it."""
    made = ours(size, dtype, device)
    others = {name: step(layer, size, dtype, device) for name, layer in rivals(size, made).items()}
    took = {name: _fastest(run) for name, run in others.items()}
    best = min(took, key=lambda name: took[name])
    theirs = others[best]
    others.clear()  # their memory too
    return best, compare(step(made, size, dtype, device), theirs, pairs=pairs, tolerance=TOLERANCES[dtype])


def with_more_experts(size: Size, dtype: torch.dtype, device: torch.device, pairs: int) -> tuple[str, Compared]:
    """``MANY`` experts against ``FEW``: other outputs, the same work."""
    many, few = (replace(size, experts=count) for count in (MANY, FEW))
    runs = [step(ours(each, dtype, device), each, dtype, device) for each in (many, few)]
    return f"autopar, {FEW} experts", compare(*runs, pairs=pairs, tolerance=float("inf"))


Case: TypeAlias = Callable[[Size, torch.dtype, torch.device, int], tuple[str, Compared]]


def apart(case: Case, *given: Any) -> tuple[str, Compared]:
    """What ``case`` finds in a new process."""
    context = torch.multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(_alone, case, *given).result()


def _alone(case: Case, *given: Any) -> tuple[str, Compared]:
    store = dist.HashStore()  # type: ignore[attr-defined]  # public, but not in __all__
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        return case(*given)
    finally:
        dist.destroy_process_group()


def _fastest(run: Callable[[], Tensor]) -> float:
    """Seconds of the fastest of a few runs."""
    seconds = []
    for _ in range(LOOKS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _row(case: str, best: str, found: Compared, limit: float) -> dict[str, Any]:
    times = f"{found.ours_s * 1e3:.2f} ms | {found.theirs_s * 1e3:.2f} ms"
    print(f"| {case} | {best} | {times} | {found.ratio} | {limit:.2f} |", flush=True)
    return {"case": case, "against": best, "limit": limit, **found.document()}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write ``results/moe.json``; 1 if a limit is not kept."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moe", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=None, help="default: a GPU if there is one")
    parser.add_argument("--pairs", type=int, default=30, help=f"interleaved pairs, at least {MIN_PAIRS}")
    parser.add_argument("--tiny", action="store_true", help="a layer of a few thousand parameters: does it run?")
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="folder of the result")
    options = parser.parse_args(argv)
    if options.pairs < MIN_PAIRS:
        parser.error(f"--pairs {options.pairs}: at least {MIN_PAIRS} pairs make an interval")
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    sizes = TINY if options.tiny else ON_GPU if device.type == "cuda" else ON_CPU
    print(f"{device.type}, {dtype}, {torch.get_num_threads()} threads, {options.pairs} pairs; forward and backward")
    print("ratio: median [95 % interval] ± half its width\n")
    print("| case | against | autopar | the other | ratio | limit |\n|---|---|---|---|---|---|")
    rows = []
    given = dtype, device, options.pairs
    for size in sizes:
        rows.append(_row(str(size), *apart(against_the_best, size, *given), RATIO))
    many = f"{MANY} experts: {sizes[0]}"
    rows.append(_row(many, *apart(with_more_experts, sizes[0], *given), MORE_EXPERTS))
    about = {"device": device.type, "dtype": str(dtype), "threads": torch.get_num_threads()}
    where = report.write("moe", {**about, "sizes": [asdict(size) for size in sizes], "cases": rows}, options.out)
    print(f"\nwritten to {where}")
    return 0 if all(row["ratio"]["low"] <= row["limit"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

"""``python -m benchmarks.runtime``: autopar's runtime against the same layouts written by hand, in pairs.

The step is zero_grad, forward and backward; the optimizer is torch's own on both sides and is left out. With 2
processes the ratio is held to be at most 1.00, within the interval; in a single process at most 1.02. 4 processes
share the cores of a small machine: their figures are for information.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

MIN_PAIRS = 6
DATA_PARALLEL = 0.5  # least share of the gradients that is reduced where the layers are data-parallel


@dataclass(frozen=True, kw_only=True)
class Case:
    """``limit``: what the ratio may be; None: for information."""

    mesh: tuple[tuple[str, int], ...]
    zero: int = 0
    limit: float | None = 1.00

    @property
    def processes(self) -> int:
        product = 1
        for _, size in self.mesh:
            product *= size
        return product

    def __str__(self) -> str:
        if not self.mesh:
            return "1 process"
        zero = f", ZeRO {self.zero}" if any(axis == "dp" for axis, _ in self.mesh) else ""
        return ", ".join(f"{axis} {size}" for axis, size in self.mesh) + zero


CASES = (
    Case(mesh=(), limit=1.02),
    Case(mesh=(("tp", 2),)),
    Case(mesh=(("dp", 2),), zero=3),
    Case(mesh=(("dp", 2),)),
    Case(mesh=(("tp", 4),), limit=None),
    Case(mesh=(("dp", 2), ("tp", 2)), zero=3, limit=None),
)


def measure(rank: int, say: Any, cases: Sequence[Case], size: Any, pairs: int) -> None:
    """In every process: both models of each case, and what rank 0 says of them."""
    from torch.distributed.device_mesh import init_device_mesh

    import autopar
    from benchmarks.by_hand import by_hand, plain
    from benchmarks.llama import batch, llama, parameters
    from benchmarks.paired import compare

    for case in cases:
        whole, theirs = batch(size), llama(size)
        options: dict[str, Any] = {"zero": case.zero} if dict(case.mesh).get("dp") else {}
        ours = autopar.parallelize(
            llama(size), whole, mesh=dict(case.mesh), num_microbatches=1, recompute="none", **options
        )
        part = ours.shard_inputs(whole)
        share = None
        if "dp" in dict(case.mesh):
            share = _reduced(ours.plan, parameters(theirs) // dict(case.mesh).get("tp", 1))
        if case.mesh:
            sizes, names = tuple(n for _, n in case.mesh), tuple(axis for axis, _ in case.mesh)
            step = by_hand(theirs, init_device_mesh("cpu", sizes, mesh_dim_names=names), zero=case.zero)
        else:
            step = plain(theirs)

        def our_step(ours: Any = ours, part: Any = part) -> Any:
            ours.zero_grad(set_to_none=True)
            return ours.train_step(**part)

        found = compare(our_step, lambda step=step, part=part: step(part), pairs=pairs)  # type: ignore[misc]
        if rank == 0:
            say((case, found, share))


def _reduced(plan: Any, parameters: int) -> float:
    """Share of the gradients that are reduced over dp; written by hand it is 1.

    A plan may gather what enters an embedding instead of reducing the gradient of its table; with few tokens it
    repeats the work and reduces nothing.
    """
    moved = sum(each.bytes * each.count for each in plan.collectives if each.phase == "grad" and each.axis == "dp")
    return float(moved / (4 * parameters))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write ``results/runtime.json``; 1 if a limit is not kept."""
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtime", description=__doc__)
    parser.add_argument("--pairs", type=int, default=30, help=f"interleaved pairs, at least {MIN_PAIRS}")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4], help="which numbers of processes")
    parser.add_argument("--length", type=int, default=None, help="tokens of a sequence, where time is short")
    parser.add_argument("--tiny", action="store_true", help="a model of a few thousand parameters: does it run?")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result; default benchmarks/results")
    options = parser.parse_args(argv)
    if options.pairs < MIN_PAIRS:
        parser.error(f"--pairs {options.pairs}: at least {MIN_PAIRS} pairs make an interval")

    from autopar.processes import conversation
    from benchmarks import report
    from benchmarks.llama import M50, TINY

    size, rows, kept = TINY if options.tiny else M50, [], True
    size = replace(size, length=options.length or size.length)
    print(f"{size}; {options.pairs} pairs; ratio: autopar ÷ by hand, median [95 % interval] ± half its width")
    print("reduced: share of the gradients that the plan reduces over dp (by hand all of them)")
    print(f"{'case':<20} {'autopar':>9} {'by hand':>9}  {'ratio of time':<31} {'ratio of CPU time':<31} limit  reduced")
    for processes in options.processes:
        cases = [case for case in CASES if case.processes == processes]
        for case, found, share in conversation(measure, processes, cases, size, options.pairs):
            kept &= case.limit is None or found.ratio.low <= case.limit
            if share is not None and share < DATA_PARALLEL and not options.tiny:
                print(f"{case}: not the layout written by hand: a plan of few tokens; give a larger --length")
                kept = False
            limit = "-" if case.limit is None else f"{case.limit:.2f}"
            told = "-" if share is None else f"{share:.0%}"
            times = f"{found.ours_s * 1e3:>6.0f} ms {found.theirs_s * 1e3:>6.0f} ms"
            print(f"{case!s:<20} {times}  {found.ratio!s:<31} {found.cpu_ratio!s:<31} {limit:<5}  {told}", flush=True)
            about = {"case": str(case), "processes": processes, "limit": case.limit, "reduced": share}
            rows.append({**about, **found.document()})
    where = report.write("runtime", {"model": asdict(size), "cases": rows}, options.out or report.RESULTS)
    print(f"written to {where}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

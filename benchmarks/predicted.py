"""``python -m benchmarks.predicted``: the time of a step as planned and as measured here, by profile.

The machine is calibrated first. Then models are planned with the built-in figures and with those measured, and each
plan is run. In one process predictions with measured figures are to be within a quarter. Several processes on a few
cores share them with what sends, and with torch's own work on shards, which no price has: they are for information.
``--device cuda``: on one GPU, larger models in bf16.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.llama import FOR_A_GPU, M50, TINY, Size, batch, llama

STEPS = 5
WITHIN = 1.25  # of the measured time, with measured figures, in one process
PROFILES = ("builtin", "measured")
MESHES = {1: ({"dp": 1},), 2: ({"dp": 2}, {"tp": 2})}


# Of what is measured: LLaMA, then layers, tokens of a sequence and its pixels of GPT-2 and ViT of 64-wide heads.
@dataclass(frozen=True, kw_only=True)
class Sizes:
    llama: Size
    layers: int
    heads: int
    length: int
    batch: int
    pixels: int


SIZES = {
    "tiny": Sizes(llama=TINY, layers=1, heads=1, length=64, batch=2, pixels=64),
    "cpu": Sizes(llama=M50, layers=4, heads=4, length=256, batch=8, pixels=224),
    "cuda": Sizes(llama=FOR_A_GPU[3], layers=24, heads=16, length=1024, batch=8, pixels=224),
}


def models(sizes: Sizes, dtype: torch.dtype, device: str) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Each makes a model of random weights and its batch, the same every time."""
    import transformers as hf

    width, vocabulary = 64 * sizes.heads, 8192

    def gpt2() -> tuple[Any, Any]:
        config = hf.GPT2Config(n_layer=sizes.layers, n_embd=width, n_head=sizes.heads, vocab_size=vocabulary,
                               resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)  # fmt: skip
        torch.manual_seed(0)
        ids = torch.randint(0, vocabulary, (sizes.batch, sizes.length))
        with torch.device(device):
            model = hf.GPT2LMHeadModel(config)
        return model.train().to(dtype), {"input_ids": ids, "labels": ids}

    def vit() -> tuple[Any, Any]:
        config = hf.ViTConfig(num_hidden_layers=sizes.layers, hidden_size=width, num_attention_heads=sizes.heads,
                              intermediate_size=4 * width, image_size=sizes.pixels)  # fmt: skip
        config.num_labels = 16
        torch.manual_seed(0)
        images = torch.rand(4 * sizes.batch, 3, sizes.pixels, sizes.pixels, dtype=dtype)
        inputs = {"pixel_values": images, "labels": torch.arange(len(images)) % 16}
        with torch.device(device):
            model = hf.ViTForImageClassification(config)
        return model.train().to(dtype), inputs

    def of_llama() -> tuple[Any, Any]:
        return llama(sizes.llama, dtype=dtype, device=device), batch(sizes.llama)

    return {"llama": of_llama, "gpt2": gpt2, "vit": vit}


def measure(
    rank: int, say: Callable[[object], None], profiles: dict[str, str], meshes: Sequence[dict[str, int]], sizes: Sizes,
    device: str,
) -> None:  # fmt: skip
    """In every process: each model on each mesh with each profile, and what rank 0 says of them."""
    import autopar

    if device == "cuda":
        dist.destroy_process_group()  # of gloo; autopar starts NCCL
    for name, make in models(sizes, torch.bfloat16 if device == "cuda" else torch.float32, device).items():
        for mesh in meshes:
            for profile, path in profiles.items():
                model, inputs = make()
                ours = autopar.parallelize(model, inputs, mesh=mesh, profile=path, num_microbatches=1)
                part = {name: each.to(device) for name, each in ours.shard_inputs(inputs).items()}
                found, step_s = ours.profile(STEPS, **part), trained_s(ours, part)
                if rank == 0 and found.planned is not None:
                    say((name, mesh, profile, found.planned, replace(found.measured, step_s=step_s)))


def trained_s(model: Any, part: dict[str, torch.Tensor]) -> float:
    """Seconds of a step with the optimizer's, as a plan predicts it."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    on_gpu, seconds = next(model.parameters()).is_cuda, []
    for _ in range(1 + STEPS):
        start = time.perf_counter()
        model.train_step(**part)
        optimizer.step()
        optimizer.zero_grad()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def main(argv: Sequence[str] | None = None) -> int:
    """Calibrate, measure, print a table, write ``results/predicted.json``; 1 if a prediction is further off."""
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predicted", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: one process on one GPU")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2], help="which numbers of processes")
    parser.add_argument("--profile", type=Path, help="of this machine; default: it is calibrated now")
    parser.add_argument("--tiny", action="store_true", help="models of a few thousand parameters: does it run?")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result; default benchmarks/results")
    options = parser.parse_args(argv)

    from autopar.calibrating import calibrate, toml
    from autopar.processes import conversation
    from benchmarks import report

    rows, kept = [], True
    device, sizes = options.device, SIZES["tiny" if options.tiny else options.device]
    print(f"{'model':<8} {'mesh':<6} {'profile':<9} {'planned':>10} {'measured':>10}  planned ÷ measured   of the peak")
    with tempfile.TemporaryDirectory() as folder:
        for processes in options.processes if device == "cpu" else [1]:
            path = options.profile or Path(folder) / f"{processes}.toml"
            if options.profile is None:
                path.write_text(toml(calibrate(device, processes)))
            profiles = dict(zip(PROFILES, ("builtin", str(path)), strict=True))
            told = conversation(measure, processes, profiles, MESHES[processes], sizes, device)
            for name, mesh, profile, planned, measured in told:
                ratio, of_peak = planned.step_s / measured.step_s, planned.peak_bytes / measured.peak_bytes
                held = processes == 1 and profile == "measured" and not options.tiny
                kept &= not held or 1 / WITHIN <= ratio <= WITHIN
                axes = ", ".join(f"{axis} {size}" for axis, size in mesh.items())
                times = f"{planned.step_s * 1e3:>7.0f} ms {measured.step_s * 1e3:>7.0f} ms"
                print(f"{name:<8} {axes:<6} {profile:<9} {times}  {ratio:.2f} {of_peak:>28.2f}", flush=True)
                rows.append({"model": name, "mesh": mesh, "profile": profile, "planned": asdict(planned),
                             "measured": asdict(measured)})  # fmt: skip
    where = report.write("predicted", {"steps": STEPS, "cases": rows}, options.out or report.RESULTS)
    print(f"written to {where}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

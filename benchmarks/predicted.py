"""``python -m benchmarks.predicted``: the time of a step as planned and as measured here, by profile.

The machine is calibrated first. Then models are planned with the built-in figures and with those measured, and each
plan is run. In one process predictions with measured figures are to be within a quarter. Several processes on a few
cores share them with what sends, and with torch's own work on shards, which no price has: they are for information.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STEPS = 5
WITHIN = 1.25  # of the measured time, with measured figures, in one process
PROFILES = ("builtin", "measured")
MESHES = {1: ({"dp": 1},), 2: ({"dp": 2}, {"tp": 2})}


def models(*, tiny: bool) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Each makes a model of random weights and its batch, the same every time."""
    import torch
    import transformers as hf

    from benchmarks.llama import M50, TINY, batch, llama

    size, layers, pixels = (TINY, 1, 64) if tiny else (M50, 4, 224)

    def gpt2() -> tuple[Any, Any]:
        config = hf.GPT2Config(n_layer=layers, n_embd=64 * layers, n_head=layers, vocab_size=8192, resid_pdrop=0.0,
                               embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)  # fmt: skip
        torch.manual_seed(0)
        ids = torch.randint(0, 8192, (2 * layers, 64 * layers))
        return hf.GPT2LMHeadModel(config).train(), {"input_ids": ids, "labels": ids}

    def vit() -> tuple[Any, Any]:
        config = hf.ViTConfig(num_hidden_layers=layers, hidden_size=64 * layers, num_attention_heads=layers,
                              intermediate_size=256 * layers, image_size=pixels)  # fmt: skip
        config.num_labels = 16
        torch.manual_seed(0)
        inputs = {"pixel_values": torch.rand(8, 3, pixels, pixels), "labels": torch.arange(8)}
        return hf.ViTForImageClassification(config).train(), inputs

    return {"llama": lambda: (llama(size), batch(size)), "gpt2": gpt2, "vit": vit}


def measure(rank: int, say: Any, profiles: dict[str, str], meshes: Sequence[dict[str, int]], tiny: bool) -> None:
    """In every process: each model on each mesh with each profile, and what rank 0 says of them."""
    import autopar

    for name, make in models(tiny=tiny).items():
        for mesh in meshes:
            for profile, path in profiles.items():
                model, inputs = make()
                ours = autopar.parallelize(model, inputs, mesh=mesh, profile=path, num_microbatches=1)
                found = ours.profile(STEPS, **ours.shard_inputs(inputs))
                if rank == 0 and found.planned is not None:
                    say((name, mesh, profile, found.planned.step_s, found.measured.step_s))


def main(argv: Sequence[str] | None = None) -> int:
    """Calibrate, measure, print a table, write ``results/predicted.json``; 1 if a prediction is further off."""
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predicted", description=__doc__)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2], help="which numbers of processes")
    parser.add_argument("--profile", type=Path, help="of this machine; default: it is calibrated now")
    parser.add_argument("--tiny", action="store_true", help="models of a few thousand parameters: does it run?")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result; default benchmarks/results")
    options = parser.parse_args(argv)

    from autopar.calibrating import calibrate, toml
    from autopar.processes import conversation
    from benchmarks import report

    rows, kept = [], True
    print(f"{'model':<8} {'mesh':<6} {'profile':<9} {'planned':>10} {'measured':>10}  planned ÷ measured")
    with tempfile.TemporaryDirectory() as folder:
        for processes in options.processes:
            path = options.profile or Path(folder) / f"{processes}.toml"
            if options.profile is None:
                path.write_text(toml(calibrate("cpu", processes)))
            profiles = dict(zip(PROFILES, ("builtin", str(path)), strict=True))
            for found in conversation(measure, processes, profiles, MESHES[processes], options.tiny):
                name, mesh, profile, planned_s, measured_s = found
                ratio = planned_s / measured_s
                held = processes == 1 and profile == "measured" and not options.tiny
                kept &= not held or 1 / WITHIN <= ratio <= WITHIN
                axes = ", ".join(f"{axis} {size}" for axis, size in mesh.items())
                times = f"{planned_s * 1e3:>7.0f} ms {measured_s * 1e3:>7.0f} ms"
                print(f"{name:<8} {axes:<6} {profile:<9} {times}  {ratio:.2f}", flush=True)
                rows.append({"model": name, "mesh": mesh, "profile": profile, "planned_s": planned_s,
                             "measured_s": measured_s})  # fmt: skip
    where = report.write("predicted", {"steps": STEPS, "cases": rows}, options.out or report.RESULTS)
    print(f"written to {where}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

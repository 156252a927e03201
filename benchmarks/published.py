"""``python -m benchmarks.published``: what autopar predicts beside what others published, misses included.

Each row of ``ROWS`` is one published figure of a dense model, with the source that it is quoted from. A prediction
uses the built-in cost profile: nothing is fitted to any row. What a text leaves open (batch sizes, the network) is an
assumption, which the row names. Rows of search time are our own times, beside the factor that was published.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autopar.cost_model import Cluster, Network, NodeGroup
from autopar.ir.plan import Plan
from autopar.zoo.entry import Entry
from autopar.zoo.models import ENTRIES, GPT2


@dataclass(frozen=True, kw_only=True)
class Row:
    """``published``: the figure as it was published; ``low``, ``high``: what it says as numbers, None for none.

    ``predict``: our figure. ``assumed``: what the source leaves open.
    """

    system: str
    setting: str
    published: str
    unit: str
    predict: Callable[[], float]
    low: float | None = None
    high: float | None = None
    assumed: str = ""


GPTS = {"2.6B": (2560, 32, 32), "6.7B": (4096, 32, 32), "15B": (5120, 48, 40), "39B": (8192, 48, 64)}


def _models() -> dict[str, Entry]:
    """The zoo's, GPT of Alpa's artifact (vocabulary 51200) by size, and ResNet-50 with 1000 classes."""
    found = dict(ENTRIES)
    for name, (width, layers, heads) in GPTS.items():
        sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "vocab_size": 51200}
        found[f"gpt-{name}"] = replace(GPT2, name=f"gpt-{name}", config={**GPT2.config, **sizes})
    small = ENTRIES["resnet50-100k"]
    found["resnet50-1k"] = replace(small, name="resnet50-1k", config={**small.config, "num_labels": 1000})
    return found


MODELS = _models()


@functools.cache
def planned(
    name: str, cluster: str | Cluster, batch: int, length: int | None = None, layers: int | None = None, **asked: Any
) -> Plan:
    """A plan, its own search time included."""
    import autopar

    model, inputs = MODELS[name].build(batch_size=batch, seq_len=length, layers=layers)
    options = {**asked, "mesh": dict(asked["mesh"])} if "mesh" in asked else asked
    return autopar.plan(model, inputs, cluster=cluster, name=name, **options)


def faster(slow: Callable[[], Plan], fast: Callable[[], Plan]) -> Callable[[], float]:
    """How many times as fast."""
    return lambda: slow().objective_s / fast().objective_s


def zoo(name: str, cluster: str | Cluster, batch: int, **asked: Any) -> Callable[[], Plan]:
    return lambda: planned(name, cluster, batch, **asked)


def tokens_per_s(plan: Callable[[], Plan], batch: int, length: int) -> Callable[[], float]:
    """Of one device."""
    return lambda: batch * length / plan().objective_s / plan().world_size


def search_s(plan: Callable[[], Plan]) -> Callable[[], float]:
    def seconds() -> float:
        found = plan().search
        assert found is not None
        return found["total_s"]

    return seconds


def alpa_tflops(name: str, devices: int, batch: int = 1024, length: int = 1024) -> Callable[[], float]:
    """TFLOP/s of a device by Alpa's count of a step with recomputation."""
    width, layers, _ = GPTS[name]
    flops = 96 * batch * length * layers * width**2 * (1 + length / (6 * width) + 51200 / (16 * layers * width))
    cluster = f"{max(1, devices // 8)}x{min(8, devices)}xV100-SXM2-16GB@25Gb/s"

    def found() -> float:
        plan = planned(f"gpt-{name}", cluster, batch, mixed_precision="fp16")
        return flops / plan.objective_s / devices / 1e12

    return found


V100 = "8x8xV100-SXM2-32GB@32Gb/s"
TWO_NODES = "2x8xV100-SXM2-32GB@32Gb/s"
MIXED = Cluster(
    nodes=tuple(NodeGroup(count=1, gpus=8, device=device) for device in ("V100-SXM2-32GB", "P100-PCIE-16GB")),
    network=Network(bandwidth_bytes_s=12.5e9),
)
ON_MIXED = functools.partial(zoo, "bert-large", MIXED, 512, length=128, mesh=(("dp", 16),))
BERT = functools.partial(zoo, "bert-large", V100, 512, length=128)
RESNET = functools.partial(zoo, "resnet50-100k", V100, 2048)
LLAMA = zoo("llama3-8b", "1x8xH100-SXM", 8, length=8192, mixed_precision="bf16", mesh=(("dp", 8),))
M405 = functools.partial(zoo, "llama3-405b", "64x8xH100-SXM", 512, length=8192, mixed_precision="bf16")


def m6(nodes: int) -> Callable[[], Plan]:
    mesh = (("pp", 8), ("dp", nodes))
    return zoo(
        "m6-10b", f"{nodes}x8xV100-SXM2-32GB@32Gb/s", 35 * nodes, length=512, mixed_precision="fp16", mesh=mesh,
        num_microbatches=35, schedule="1f1b",
    )  # fmt: skip


def m6_scaling() -> float:
    """Of 8 nodes' throughput a node, what 32 nodes keep: batches grow with them."""
    return m6(8)().objective_s / m6(32)().objective_s


ROWS = (
    Row(
        system="Whale (2011.09208)", setting="BERT-Large, 64 V100: pipeline against data parallel", unit="times",
        published="2.32 (1.57 in another text)", low=1.57, high=2.32,
        assumed="32 Gb/s between nodes, 8 sequences of 128 a device",
        predict=faster(BERT(mesh=(("dp", 64),), zero=0, num_microbatches=1), BERT(mesh=(("pp", 8), ("dp", 8)))),
    ),
    Row(
        system="Whale (2011.09208)",
        setting="ResNet-50, 100,000 classes, 64 V100: split classifier against data parallel",
        published="14.8", unit="times", low=14.8, high=14.8, assumed="32 Gb/s between nodes, 32 pictures a device",
        predict=faster(RESNET(mesh=(("dp", 64),), zero=0, num_microbatches=1), RESNET(mesh=(("mix", 64),))),
    ),
    Row(
        system="Whale (2011.09208)", setting="BERT-Large on 8 V100 and 8 P100: shares by speed against even ones",
        published="1.2 to 1.4", unit="times", low=1.2, high=1.4,
        assumed="100 Gb/s between nodes, P100 with PCIe, fp32, batch 512 of 128; 1.344 is the proportional bound",
        predict=faster(ON_MIXED(num_microbatches=1), ON_MIXED()),
    ),
    Row(
        system="Whale (2011.09208)", setting="M6-10B, 8 to 32 nodes of 8 V100: scaling, 8 stages, 35 microbatches",
        published="0.91", unit="of linear", low=0.91, high=0.91,
        assumed="32 Gb/s between nodes, 512 tokens; stages on different nodes",
        predict=m6_scaling,
    ),
    *(
        Row(
            system="TAP (2302.00247)", setting=f"T5-large, {layers} layers on 2 x 8 V100: search", unit="s",
            published="20 to 64 times faster than Alpa's", assumed="our own time, this machine",
            predict=search_s(zoo("t5-large", TWO_NODES, 128, length=512, layers=layers)),
        )
        for layers in (8, 24, 48)
    ),
    *(
        Row(
            system="TAP (2302.00247)", setting=f"ResNet-50, {classes} classes on 2 x 8 V100: search", unit="s",
            published="103 to 162 times faster than Alpa's", assumed="our own time, this machine",
            predict=search_s(zoo(f"resnet50-{classes}", TWO_NODES, 1024)),
        )
        for classes in ("1k", "100k")
    ),
    *(
        Row(
            system="Alpa (OSDI'22 artifact)", setting=f"GPT {name}, {devices} V100-16GB", published=f"{figure}",
            unit="TFLOP/s a GPU", low=figure, high=figure, assumed="25 Gb/s between nodes, batch 1024, fp16",
            predict=alpa_tflops(name, devices),
        )
        for name, devices, figure in (("2.6B", 8, 61.6), ("6.7B", 16, 60.0), ("15B", 32, 59.9), ("39B", 64, 57.0))
    ),
    Row(
        system="torchtitan", setting="Llama-3-8B, FSDP on 8 H100, sequence 8192", published="5762 eager, 6667 compiled",
        unit="tokens/s a GPU", low=5762, high=6667, assumed="1 sequence a device", predict=tokens_per_s(LLAMA, 8, 8192),
    ),
    Row(
        system="torchtitan", setting="Llama-3-405B on 512 H100, 1F1B", published="100", unit="tokens/s a GPU", low=100,
        high=100, assumed="batch 512 of 8192, pp 8 x dp 8 x tp 8",
        predict=tokens_per_s(M405(mesh=(("pp", 8), ("dp", 8), ("tp", 8)), schedule="1f1b"), 512, 8192),
    ),
    Row(
        system="torchtitan", setting="Llama-3-405B on 512 H100, interleaved against 1F1B", published="1.28",
        unit="times", low=1.28, high=1.28, assumed="batch 512 of 8192, pp 8 x dp 8 x tp 8",
        predict=faster(
            M405(mesh=(("pp", 8), ("dp", 8), ("tp", 8)), schedule="1f1b"),
            M405(mesh=(("pp", 8), ("dp", 8), ("tp", 8)), schedule="interleaved"),
        ),
    ),
)  # fmt: skip


def verdict(row: Row, figure: float) -> str:
    """How far the prediction is from the nearest published figure."""
    if row.low is None or row.high is None:
        return ""
    nearest = min(max(figure, row.low), row.high)
    return "inside" if nearest == figure else f"{figure / nearest - 1:+.0%}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table and write ``results/published.json``; 0 whatever the figures are, 2 where no row is asked for."""
    from autopar.ir.errors import AutoparError
    from benchmarks import report

    parser = argparse.ArgumentParser(prog="python -m benchmarks.published", description=__doc__)
    parser.add_argument("--only", default="", help="rows whose system or setting holds this text")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result; default benchmarks/results")
    options = parser.parse_args(argv)
    rows = [row for row in ROWS if options.only.lower() in f"{row.system} {row.setting}".lower()]
    if not rows:
        known = "\n".join(f"  {row.system}: {row.setting}" for row in ROWS)
        parser.error(f"--only {options.only!r}: no row's system or setting holds that; there are\n{known}")
    found: list[dict[str, Any]] = []
    for row in rows:
        start = time.monotonic()
        about = {name: getattr(row, name) for name in ("system", "setting", "published", "unit", "assumed")}
        said = f"{row.system} | {row.setting} | published {row.published}"
        try:
            figure = row.predict()
        except AutoparError as error:
            why = str(error).splitlines()[0]
            found.append({**about, "predicted": None, "why": why})
            print(f"{said} | no prediction: {why}", flush=True)
            continue
        off = verdict(row, figure)
        found.append({**about, "predicted": figure, "off": off, "took_s": time.monotonic() - start})
        print(f"{said} | predicted {figure:.3g} {row.unit} | {off} | {row.assumed}", flush=True)
    print(f"written to {report.write('published', {'rows': found}, options.out or report.RESULTS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

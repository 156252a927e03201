"""A cluster of two nodes whose network is as quick as their inside, or a hundred times slower, in three forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from autopar.cost_model import Cluster, CostProfile, Group, OpCost, collective_lines
from tests.models import VOCAB, gpt2

CLUSTER = "2x2xNode"
FIGURES = """
[device.Node]
fp32_tflops = 100
memory_tb_s = 2
memory_gb = 16
intra = "inside"
inter = "outside"
nics_per_node = 2
overlap_fraction = 0.0

[link.inside]
bandwidth_gb_s = 400
latency_us = 0.1

[link.outside]
bandwidth_gb_s = {bandwidth_gb_s}
latency_us = {latency_us}
"""


def write(path: Path, *, slower: int = 1) -> Path:
    """The figures as a profile's file."""
    path.write_text(FIGURES.format(bandwidth_gb_s=400 / slower, latency_us=0.1 * slower))
    return path


def model(batch_size: int = 4, seq_len: int = 32) -> tuple[nn.Module, dict[str, Any]]:
    """More bytes of weights than of activations: tensor parallelism is what pays, if the network is quick."""
    built = gpt2(2, n_embd=256, n_positions=seq_len).float()
    tokens = torch.randint(0, VOCAB, (batch_size, seq_len))
    return built, {"input_ids": tokens, "labels": tokens}


class Slower(CostProfile):
    """Collectives between nodes cost ``factor`` times the built-in figure."""

    factor: float = 100

    def collective_s(self, kind: str, bytes: int, group: Group) -> float | None:
        lines = collective_lines(kind, group, Cluster.parse(CLUSTER), self)
        between = self.factor if group.nodes > 1 else 1
        return between * min(line.start_s + line.s_per_byte * bytes for line in lines)


class AsItIs(Slower):
    factor = 1


class SlowProducts(CostProfile):
    """Matrix products cost a hundredth of a second each."""

    def compute_s(self, op: OpCost, device: str) -> float | None:
        return 0.01 if op.op_class == "matmul" else None

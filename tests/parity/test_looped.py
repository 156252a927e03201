"""Stacks of layers that run more than once, on the same weights: exact on every mesh, and folded by round."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autopar.arguments import check
from autopar.compiling import Readied, ready
from autopar.finding import find_plan
from tests.families.family import VOCAB, Family, causal_batch, settled
from tests.families.measure import LEAST_SPLIT, measure

WIDTH, HEADS = 32, 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ahead, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.ahead(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        made: Tensor = x + self.down(F.gelu(self.up(self.between(x))))
        return made


class Looped(nn.Module):
    """``rounds`` of ``layers``; with ``cycles``, that and then as many layers of another stack, so often."""

    def __init__(self, layers: int, rounds: int, cycles: int = 0) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.low = nn.ModuleList(Layer() for _ in range(layers))
        self.high = nn.ModuleList(Layer() for _ in range(layers if cycles else 0))
        self.rounds, self.cycles = rounds, cycles

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        low = self.embedding(input_ids)
        high = torch.zeros_like(low)
        for _ in range(self.cycles or 1):
            for _ in range(self.rounds):
                low = self._through(self.low, low + high if self.cycles else low)
            high = self._through(self.high, high + low)
        return {"loss": F.cross_entropy(self.head(high).flatten(0, 1), labels.flatten())}

    @staticmethod
    def _through(stack: nn.ModuleList, x: Tensor) -> Tensor:
        for layer in stack:
            x = layer(x)
        return x


def readied(*sizes: int, **arguments: Any) -> Readied:
    return ready(settled(Looped(*sizes)), causal_batch(), check(cluster="1x4xA100-SXM-80GB", **arguments))


@pytest.mark.parametrize("sizes", [(4, 3), (2, 2, 2), pytest.param((12, 3), marks=pytest.mark.slow)], ids=str)
def test_a_looped_stack_trains_on_two_axes_as_on_one_device(sizes: tuple[int, ...]) -> None:
    family = Family(name="looped", build=lambda: settled(Looped(*sizes)), batch=causal_batch)
    (cell,) = measure(family, ({"dp": 2, "tp": 2},)).cells
    assert cell.passed, cell.reason
    assert cell.split >= LEAST_SPLIT


@pytest.mark.parametrize("layers", [2, 8, 12])
def test_a_round_is_a_call_however_many_layers_it_has(layers: int) -> None:
    """Short ones, some of over 64 weights, some whose layers are so many that a trace leaves out their middle."""
    graph = readied(layers, 3).model.graph
    assert [node.attr("count") for node in graph.nodes if node.target == "call"] == [3]


def test_weights_of_a_round_are_used_alike_where_one_by_one_they_are_too_many() -> None:
    """Layers do as the other layers do, and none of what one could do is better."""
    arguments = check(cluster="1x4xA100-SXM-80GB", mesh={"tp": 4})
    plan, _ = find_plan(readied(6, 3, mesh={"tp": 4}), arguments)
    inputs = next(v for v in plan.assignment.variants if v.graph == "block0").inputs
    assert len(inputs) == 1 + 6 * 12
    assert plan.gap == 0

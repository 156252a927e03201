"""A model that turns queries and keys by tables of complex numbers, and what a process does with it."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autopar
from autopar.runtime.parity import compare
from tests.families.family import SEQ, VOCAB, Family, causal_batch, settled
from tests.families.measure import PROFILE, alone
from tests.families.ranks import stepped

WIDTH, HEADS, HEAD = 32, 4, 8


def table(length: int = 2 * SEQ) -> Tensor:
    """Unit complex numbers by position and pair of features."""
    speeds = 10.0 ** -torch.linspace(0, 2, HEAD // 2, dtype=torch.float64)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), speeds)
    return torch.polar(torch.ones_like(angles), angles)


def turned(x: Tensor, by: Tensor) -> Tensor:
    """``x`` [b, s, h, d] with its pairs of features turned by ``by`` [s, d / 2]."""
    made = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * by.unsqueeze(1)
    return torch.view_as_real(made).flatten(3)


class Layer(nn.Module):
    """The table is a buffer of its own, or given."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.table = nn.Buffer(table())

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, HEAD)).unbind(2)
        q, k = turned(q, by), turned(k, self.table[: k.shape[1]])
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Rotary(nn.Module):
    """The model's own table is no buffer, and learns how far it turns."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.length = nn.Parameter(torch.ones(HEAD // 2))
        self.by = table()

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(input_ids)
        by = self.by[: input_ids.shape[1]] * self.length
        for layer in self.layers:
            x = layer(x, by)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


ROTARY = Family(name="rotary", build=lambda: settled(Rotary()), batch=causal_batch, tolerance=1e-10)


def trained(mesh: Mapping[str, int], microbatches: int) -> float:
    """Three steps on two processes; each compares with one device and returns the largest error."""
    torch.manual_seed(0)
    model, batch = ROTARY.build(), ROTARY.batch()
    expected = alone(copy.deepcopy(model), batch, ROTARY)
    parallel = autopar.parallelize(model, batch, mesh=mesh, profile=PROFILE, num_microbatches=microbatches)
    losses, gradients, _ = stepped(parallel, batch, 1e9)
    state = parallel.full_state_dict()
    names = [name for name in expected.gradients if name in gradients]  # the others are of another stage
    found = {
        "losses": losses, "gradients": gradients, "parameters": {name: state[name] for name in expected.parameters},
        "buffers": {name: torch.view_as_real(state[name]) for name in expected.buffers},
    }  # fmt: skip
    wanted = {
        "losses": expected.losses, "gradients": {name: expected.gradients[name] for name in names},
        "parameters": expected.parameters,
        "buffers": {name: torch.view_as_real(buffer) for name, buffer in expected.buffers.items()},
    }  # fmt: skip
    assert len(names) == len(expected.gradients) or mesh.get("pp", 1) > 1
    return max(compare(found[what], wanted[what], tol=ROTARY.tolerance, what=what) for what in found)

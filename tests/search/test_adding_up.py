"""What is said that adding up takes is no more than any change of layouts takes, and is said once for each addition."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from autopar.arguments import check
from autopar.compiling import ready
from autopar.cost_model import Cluster, axis_groups, load_profile
from autopar.ir.layout import RSTAR, Layout, P, R, Shard
from autopar.ir.mesh import Mesh
from autopar.ir.types import TensorType
from autopar.models import resolve
from autopar.nn import MoE
from autopar.passes.adding_up import Parts, added_ns
from autopar.passes.build import Model
from autopar.passes.conversions import Conversions
from autopar.passes.facts import Fact
from autopar.passes.heavy import heavy
from autopar.passes.pricing import Pricing
from autopar.passes.problem import FORBIDDEN


def pricing_on(mesh: Mesh, cluster: str) -> Pricing:
    known = Cluster.parse(cluster)
    groups = axis_groups(mesh.axes, known)
    return Pricing(mesh=mesh, cluster=known, profile=load_profile("builtin"), groups=groups)


def layouts(mesh: Mesh, placements: tuple[object, ...], shape: tuple[int, ...]) -> list[Layout]:
    every = (Layout(mesh, each) for each in itertools.product(placements, repeat=len(mesh.axes)))  # type: ignore[arg-type]
    return [layout for layout in every if layout.problem(shape) is None]


@pytest.mark.parametrize("cluster", ["2x4xH100-SXM", "4x2xV100-SXM2-32GB", "1x8xA100-SXM-80GB"])
@pytest.mark.parametrize("axes", [(("dp", 2), ("tp", 4)), (("dp", 2), ("ep", 2), ("tp", 2))])
@pytest.mark.parametrize("grad", [True, False])
def test_no_change_of_layouts_takes_less(cluster: str, axes: tuple[tuple[str, int], ...], grad: bool) -> None:
    mesh, shape = Mesh(axes), (256, 4096)
    pricing = pricing_on(mesh, cluster)
    fact = Fact(TensorType("bf16", shape), grad=grad, pure=False)
    conversions, splits = Conversions(pricing), (R, Shard(0), Shard(1))
    needs = layouts(mesh, (*splits, RSTAR), shape) if grad else []
    asked_for = added_ns(pricing, Parts(passed=(), added=0, calls=1, read={0: fact}), [((n,), n) for n in needs])
    near = 0
    for need, (least, _, _) in zip(needs, asked_for.T.tolist(), strict=True):
        costs = [sum(conversions.cost_ns(fact, have, need)[:2]) for have in layouts(mesh, (*splits, P), shape)]
        assert min(cost for cost in costs if cost < FORBIDDEN) >= least
        near += least > 0.9 * min(costs)
    assert near or not grad  # and seldom much less
    whole = layouts(mesh, splits, shape)
    made = layouts(mesh, (*splits, P), shape)
    asked_for = added_ns(pricing, Parts(passed=(fact,), added=1, calls=1, read={}), [((), have) for have in made])
    for have, (least, _, _) in zip(made, asked_for.T.tolist(), strict=True):
        assert min(sum(conversions.cost_ns(fact, have, need)[:2]) for need in whole) >= least
        assert (least > 0) == (P in have.placements)


def model_of(module: nn.Module, *inputs: Tensor) -> Model:
    return ready(module, inputs, check(cluster="1x4xA100-SXM-80GB")).model


class Residual(nn.Module):
    """``inside``: experts add to what the next layer reads; else to what only the end reads."""

    def __init__(self, layers: int, *, inside: bool, normed: bool = False) -> None:
        super().__init__()
        self.moes = nn.ModuleList(MoE(32, 64, 4) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(layers))
        self.dense = nn.ModuleList(nn.Linear(32, 32) for _ in range(layers))
        self.inside, self.normed = inside, normed

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.zeros_like(x)
        for moe, norm, dense in zip(self.moes, self.norms, self.dense, strict=True):
            given = norm(x)
            made = moe(given)[0]
            if self.normed:
                made = torch.tanh(made)
            if self.inside:
                x = x + made
            else:
                x, kept = x + dense(given), kept + made
        return (x + kept).square().mean()


@pytest.mark.parametrize(
    ("inside", "normed", "added"),
    [(True, False, (5, 6)), (False, False, (0, 4)), (True, True, (6, 6)), (False, True, (4, 4))],
)
def test_an_addition_counts_in_calls_that_need_it(inside: bool, normed: bool, added: tuple[int, int]) -> None:
    model = model_of(Residual(6, inside=inside, normed=normed), torch.randn(8, 16, 32))
    (at,) = (at for at in heavy(model).parts.values() if at.calls > 1)
    assert (at.added, at.calls) == added
    assert min(fact.type.numel for fact in at.passed) == 8 * 16 * 32
    assert next(iter(at.read.values())).type.numel == 8 * 16 * 32
    assert not any(fact.parameter for fact in at.read.values())


def test_a_value_that_two_read_counts_once() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = MoE(32, 64, 4), MoE(32, 48, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(x)
            return torch.tanh(self.one(x)[0] + self.other(x)[0]).square().mean()

    model = model_of(Both(), torch.randn(8, 16, 32, requires_grad=False))
    first, second = heavy(model).parts.values()
    assert (first.added, second.added) == (1, 0)
    assert len(first.read) == len(second.read) + 1


def test_experts_split_inside_pay_for_their_sums() -> None:
    made = resolve("zoo:mixtral-8x7b", batch_size=8, seq_len=128, layers=4)
    model = ready(made.model, made.example_inputs, check(cluster="1x4xA100-SXM-80GB", mixed_precision="bf16")).model
    (at,) = heavy(model).parts.values()
    mesh = Mesh((("tp", 4),))
    pricing = pricing_on(mesh, "1x4xA100-SXM-80GB")
    rows = 8 * 128 * 4096 * 2  # bytes of what goes in, and of what comes out
    one = pricing.collective_ns("all_reduce", rows, "tp")
    two = pricing.collective_ns("reduce_scatter", rows, "tp") + pricing.collective_ns("all_gather", rows // 4, "tp")
    none, split, made_of_parts = (Layout(mesh, (each,)) for each in (R, RSTAR, P))
    count = 1 + max(at.read)
    (results, gradients), _, _ = added_ns(
        pricing, at, [([none] * count, made_of_parts), ([split] * count, none)]
    ).tolist()  # fmt: skip
    assert results == min(one, two) * 3 // 4  # the last layer's may be added up with something else
    assert min(one, two) <= gradients < 1.5 * min(one, two)

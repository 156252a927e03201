"""Attention with dropout: written out it is torch's attention, fused it has a seed a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autopar.ir.mesh import Mesh
from autopar.ir.program import RNG_INPUT
from autopar.passes.prepare import canonical_graph
from autopar.passes.trace import trace
from autopar.runtime.random_words import rng_state, seed_of
from autopar.runtime.simulate import simulate
from tests.lowered import lowered, model_of
from tests.randomness.dropped import Case, alone, program, run

ALONE = Mesh((("dp", 1),))
ALL_BUT_NOTHING = 1e-12  # attention with this dropout is written out, and drops nothing


class Attention(nn.Module):
    """Attention of parameters, so that there are gradients of all three."""

    def __init__(self, heads: int, groups: int, keys: int, **how: Any) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.q, self.k, self.v = (
            nn.Parameter(torch.randn(2, *shape, 8, generator=generator, dtype=torch.float64))
            for shape in ((heads, 6), (groups, keys), (groups, keys))
        )
        self.how = how

    def forward(self, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.q, self.k, self.v
        return (F.scaled_dot_product_attention(q, k, v, mask, **self.how) * weights).sum()


def mask(kind: str, heads: int, keys: int) -> Tensor | None:
    if kind == "none":
        return None
    made = torch.rand(2, heads, 6, keys, generator=torch.Generator().manual_seed(1)) < 0.6
    made[0, :, 2] = False  # a row that sees nothing
    return made if kind == "bool" else torch.where(made, 0.3, -2.0).double()


@pytest.mark.parametrize(
    ("heads", "groups", "keys", "kind", "how"),
    [
        (4, 4, 6, "none", {}), (4, 4, 6, "none", {"is_causal": True}), (4, 4, 5, "bool", {}),
        (4, 4, 5, "float", {"scale": 0.7}), (4, 2, 6, "none", {"is_causal": True, "enable_gqa": True}),
        (4, 2, 5, "bool", {"enable_gqa": True}), (6, 1, 5, "float", {"enable_gqa": True}),
    ],
)  # fmt: skip
def test_attention_written_out_is_attention(heads: int, groups: int, keys: int, kind: str, how: dict[str, Any]) -> None:
    model = Attention(heads, groups, keys, dropout_p=ALL_BUT_NOTHING, **how)
    given = {"weights": torch.linspace(-1, 1, 2 * heads * 6 * 8, dtype=torch.float64).view(2, heads, 6, 8)}
    found_mask = mask(kind, heads, keys)
    given |= {} if found_mask is None else {"mask": found_mask}
    graph = canonical_graph(trace(model, given).graph)
    assert {"aten.matmul.default", "autopar.dropout"} <= {node.target for node in graph.nodes}
    assert not any("attention" in node.target for node in graph.nodes)
    made = lowered(model_of(graph, dict.fromkeys((*given, RNG_INPUT), (None, None))), ALONE, {})
    made = replace(made, loss=made.graph.outputs[0])
    found = simulate(made, given, {name: p.detach() for name, p in model.named_parameters()})
    model.how["dropout_p"] = 0.0
    model(**given).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found.gradients[name], parameter.grad, rtol=1e-12, atol=1e-12)


def test_a_sequence_may_be_split_where_attention_drops() -> None:
    """Written out, causal rows are rows of products like any others."""
    made, _ = program(Case(model="gpt2", mesh="cp=2"))
    block = made.graph.blocks[0]
    products = [n for n in block.nodes if n.target == "aten.matmul.default" and len(n.result.type.shape) == 4]
    assert len(products) == 2
    assert all(n.result.layout is not None and n.result.layout.owners(2) for n in products)


def test_fused_attention_with_dropout_stays_one_operation() -> None:
    made, _ = program(Case(model="gpt2", mesh="tp=2", rng="fast"))
    (node,) = [n for n in made.graph.blocks[0].nodes if "sdpa" in n.target or "attention" in n.target]
    assert node.target == "autopar.sdpa_dropout"
    assert node.attr("index") == (((8, None),), ((2, "tp"), (2, None)), ((12, None),), ((8, None),))


@pytest.mark.parametrize("mesh", ["", "dp=2", "tp=2"])
def test_fused_attention_draws_the_same_for_the_same_plan_and_step(mesh: str) -> None:
    case = Case(model="gpt2", mesh=mesh, rng="fast")
    before = torch.get_rng_state()
    first, again, other = run(case), run(case), run(case, step=6)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.loss is not None and again.loss is not None and other.loss is not None
    assert torch.equal(first.loss, again.loss) and not torch.equal(first.loss, other.loss)
    assert all(torch.equal(first.gradients[name], again.gradients[name]) for name in first.gradients)
    exact = alone("gpt2").loss
    assert exact is not None and abs(float(first.loss - exact)) < 0.2  # other masks, the same model


def test_fused_attention_drops_other_weights_on_every_shard_and_draw() -> None:
    state = rng_state(1, 2)
    seeds = {seed_of(state, draw, (((2, place), (4, None)),)) for draw in (0, 1) for place in (0, 1)}
    seeds |= {seed_of(rng_state(1, 3), 0, (((2, 0), (4, None)),)), seed_of(rng_state(1, 2, 1), 0, (((2, 0),),))}
    assert len(seeds) == 6

"""Masks are proven what they are from how they are built, at any size, and never made when not needed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autopar.ir.graph import SOURCES, Graph, Node
from autopar.passes.canonical_affine import Affine, Choice, Fact, Number, Pred
from autopar.passes.canonicalize import canonicalize, spell
from autopar.passes.masks import follow
from autopar.passes.trace import trace
from tests.trace.compare import assert_same
from tests.trace.interpreter import call
from tests.trace.models import TRANSFORMERS, bert, llama, llama_padded, mistral

LOW = torch.finfo(torch.float32).min
Build = Callable[[torch.Tensor], torch.Tensor]


def causal_grid(s: int) -> torch.Tensor:
    return torch.arange(s)[None, :] <= torch.arange(s)[:, None]


# Masks of an attention over 6 positions at batch 2; each from a tensor [2, 6] of which only the shape counts.
CAUSAL: dict[str, Build] = {
    "compared": lambda x: causal_grid(6),
    "tril": lambda x: torch.ones(6, 6).tril().bool(),
    "not_triu": lambda x: ~torch.ones(6, 6, dtype=torch.bool).triu(1),
    "infinite_triu": lambda x: torch.full((6, 6), float("-inf")).triu(1).double(),
    "lowest_triu": lambda x: torch.full((6, 6), LOW).double().triu(1).expand(2, 1, 6, 6),
    "filled": lambda x: torch.zeros(6, 6).double().masked_fill(~causal_grid(6), LOW),
    "where": lambda x: torch.where(causal_grid(6), 0.0, LOW).double(),
    "one_minus": lambda x: (1.0 - torch.tril(torch.ones(6, 6).double())) * LOW,
    "shifted": lambda x: (torch.arange(1, 7)[:, None] > torch.arange(6)).expand(2, 1, 6, 6),
    "from_cumsum": lambda x: (
        torch.ones_like(x).long().cumsum(-1)[:, None, :] <= torch.arange(1, 7)[:, None]
    )[:, None],
    "with_wide_window": lambda x: causal_grid(6) & (torch.arange(6)[:, None] - torch.arange(6) < 99),
    "packed": lambda x: causal_grid(6) & (torch.zeros(6).long()[:, None] == torch.zeros(6).long()),
    "twice": lambda x: (causal_grid(6) & causal_grid(6)) | (torch.arange(6) > 100),
}
SHOWING_ALL: dict[str, Build] = {
    "ones": lambda x: torch.ones(2, 1, 6, 6, dtype=torch.bool),
    "zeros_added": lambda x: torch.zeros(6, 6).double(),
    "nonnegative": lambda x: (torch.arange(6) >= 0).expand(2, 1, 6, 6),
    "either": lambda x: causal_grid(6) | ~causal_grid(6) | (torch.arange(6) < 6),
}
OTHER: dict[str, Build] = {
    "window": lambda x: causal_grid(6) & (torch.arange(6)[:, None] - torch.arange(6) < 3),
    "window_added": lambda x: torch.where(
        causal_grid(6) & (torch.arange(6)[:, None] - torch.arange(6) < 3), 0.0, LOW
    ).double(),
    "strict": lambda x: (torch.arange(6)[None, :] < torch.arange(6)[:, None]) | (torch.arange(6) == 0),
    "anticausal": lambda x: causal_grid(6).t(),
    "prefix": lambda x: causal_grid(6) | (torch.arange(6) < 2),
    "soft": lambda x: torch.where(causal_grid(6), 0.0, -1.0).double(),
    "distance": lambda x: (torch.arange(6) - torch.arange(6)[:, None]).double(),
    "of_the_input": lambda x: causal_grid(6) & (x > -9)[:, None, None, :],
}


class Attention(nn.Module):
    def __init__(self, build: Build) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 2, 3, 6, 4).double())
        self.build = build

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.w * x[:, None, :, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.build(x))


def attention(build: Build) -> tuple[Node, Graph]:
    torch.manual_seed(0)
    _, graph = assert_same(Attention(build), (torch.randn(2, 6).double(),))
    (node,) = (node for node in graph.nodes if "attention" in node.target)
    return node, graph


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_mask_becomes_is_causal(name: str) -> None:
    node, graph = attention(CAUSAL[name])
    assert len(node.operands) == 3
    assert node.attr("is_causal") is True
    assert not [node for node in graph.nodes if "arange" in node.target or "full" in node.target]


@pytest.mark.parametrize("name", SHOWING_ALL)
def test_a_mask_that_shows_everything_is_dropped(name: str) -> None:
    node, _ = attention(SHOWING_ALL[name])
    assert len(node.operands) == 3
    assert node.attr("is_causal") is None


@pytest.mark.parametrize("name", OTHER)
def test_any_other_mask_stays(name: str) -> None:
    node, graph = attention(OTHER[name])
    assert len(node.operands) == 4
    assert node.attr("is_causal") is None
    assert graph.values()[str(node.operands[3])].type.numel <= 2 * 6 * 6


def test_a_square_is_needed_to_be_causal() -> None:
    class Crossed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.arange(4)[None, :] <= torch.arange(6)[:, None]
            q, k = x[:, :, None].expand(2, 6, 4), x[:, :4, None].expand(2, 4, 4)
            return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)

    _, graph = assert_same(Crossed(), (torch.randn(2, 6).double(),))
    assert len(graph.nodes[-1].operands) == 4


def masks_of(made: Any) -> list[Any]:
    """For each attention: the type of its mask, or whether it is causal."""
    graph = canonicalize(trace(*made).graph)
    types = graph.values()
    nodes = [node for node in graph.nodes if "attention" in node.target]
    return [
        str(types[str(n.operands[3])].type) if len(n.operands) > 3 else n.attr("is_causal") for n in nodes
    ]


def test_models_get_the_least_mask() -> None:
    assert masks_of(llama()) == [True, True]
    assert masks_of(mistral(4)) == ["bool[1,1,12,12]"] * 2
    assert masks_of(mistral(99)) == [True, True]
    assert masks_of(mistral(None)) == [True, True]
    assert masks_of(bert()) == ["bool[2,1,1,12]"] * 2
    assert masks_of(llama_padded()) == ["bool[2,1,12,12]"] * 2


def test_a_padding_mask_is_a_view_of_the_input() -> None:
    graph = canonicalize(trace(*bert()).graph)
    producers = graph.producers()
    node = next(node for node in graph.nodes if "attention" in node.target)
    reshape = producers[str(node.operands[3])]
    cast = producers[str(reshape.operands[0])]
    assert (reshape.target, cast.target) == ("aten.reshape.default", "aten.to.dtype")
    assert producers[str(cast.operands[0])].attr("name") == "attention_mask"


@pytest.mark.parametrize("window", [None, 4096])
def test_nothing_is_made_at_batch_512_and_131072_positions(window: int | None) -> None:
    with torch.device("meta"):
        model, _ = mistral(window)
        tokens = torch.empty(512, 131072, dtype=torch.int64)
    traced = trace(model, {"input_ids": tokens, "labels": tokens})
    graph = canonicalize(traced.graph)
    largest = max(
        value.type.numel
        for node in graph.nodes
        for value in node.results
        if value.type.dtype in ("bool", "i64")
    )
    assert largest == (512 * 131073 if window is None else 131072**2)


def elements(fact: Fact, shape: tuple[int, ...]) -> list[Number]:
    """What the fact says of every element, in order."""

    def number(value: Affine, index: tuple[int, ...]) -> Number:
        return value.const + sum(coef * at for coef, at in zip(value.coefs, index, strict=True))

    def truth(p: Pred, index: tuple[int, ...]) -> bool:
        values = [(number(atom.value, index), atom.equal) for atom in p.atoms]
        return all(v == 0 if equal else v >= 0 for v, equal in values) != p.negated

    made: list[Number] = []
    for index in itertools.product(*map(range, shape)):
        match fact:
            case Affine():
                made.append(number(fact, index))
            case Pred():
                made.append(truth(fact, index))
            case Choice(p, yes, no):
                made.append(yes if truth(p, index) else no)
    return made


def known_values(graph: Graph, inputs: dict[str, torch.Tensor]) -> int:
    """Check every fact against the values that torch computes; the number of facts."""
    facts: dict[str, Fact] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    env: dict[str, torch.Tensor] = {name: inputs[name] for name in inputs}
    for node in graph.nodes:
        shapes.update((value.name, value.type.shape) for value in node.results)
        fact = follow(node, facts, shapes)
        ready = node.target not in SOURCES and all(name in env for name in node.uses())
        if ready and len(node.results) == 1:
            env[node.result.name] = call(node, env)
        if fact is not None:
            facts[node.result.name] = fact
            said = torch.tensor(elements(fact, node.result.type.shape), dtype=torch.float64)
            assert torch.equal(env[node.result.name].double().flatten(), said), node
    return len(facts)


@pytest.mark.parametrize("name", [*CAUSAL, *SHOWING_ALL, *OTHER])
def test_facts_are_what_torch_computes(name: str) -> None:
    x = torch.randn(2, 6).double()
    graph = spell(trace(Attention({**CAUSAL, **SHOWING_ALL, **OTHER}[name]), (x,)).graph)
    assert known_values(graph, {"x": x}) > 0


@pytest.mark.parametrize("name", ["gpt2", "llama_padded", "mistral", "t5", "bert"])
def test_facts_about_models_are_what_torch_computes(name: str) -> None:
    model, inputs = TRANSFORMERS[name]()
    assert known_values(spell(trace(model, inputs).graph), inputs) > 5

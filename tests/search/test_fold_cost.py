"""Folding is a shortcut of the search and nothing else: same cost, same plan, whatever things are called."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from autopar.arguments import check
from autopar.compiling import Readied, ready
from autopar.ir.plan import Plan
from tests.models import gpt2
from tests.search.folded import RENAMED, Listed, searched, tokens

ROOT = Path(__file__).parents[2]
BUILDERS: dict[str, Callable[..., nn.Module]] = {"gpt2": gpt2, "one module": Listed}
MESHES = ({"dp": 2}, {"tp": 2}, {"dp": 2, "tp": 2})
CASES = [
    pytest.param(name, layers, mesh, id=f"{name}-{layers}-{mesh}",
                 marks=[] if layers == 4 else [pytest.mark.slow])
    for name in BUILDERS for layers in (2, 4, 6) for mesh in MESHES
]  # fmt: skip


def folded(model: nn.Module) -> Readied:
    arguments = check(cluster="1x2xCPU")
    return ready(model, tokens(), arguments)


def merged(model: nn.Module) -> list[set[str]]:
    """For every layer that shares a block with another one, its parameters."""
    graph = folded(model).model.graph
    found = []
    for node in graph.nodes:
        if node.target == "call" and node.attr("count") != 1:
            params: Any = node.attr("params")
            found += [set(map(str, names)) for names in params]
    return found


@pytest.mark.parametrize(("name", "layers", "mesh"), CASES)
def test_folded_and_unfolded_searches_cost_the_same(name, layers, mesh):
    """But for rounding each parameter's share, both proven; collectives start for free: their number is no matter."""
    model = BUILDERS[name](layers)
    short, long = (searched(model, mesh=mesh, how={"folded": way}) for way in (True, False))
    assert [block.count for block in short.blocks] == [layers]
    assert not long.blocks
    shares = 4 * sum(1 for _ in model.parameters())
    assert short.objective_s == pytest.approx(long.objective_s, rel=0, abs=shares * 1e-9)
    assert short.proven_optimal
    assert long.proven_optimal


@pytest.mark.parametrize("mesh", [{"tp": 2}, {"dp": 2}, {"dp": 2, "tp": 2}], ids=str)
@pytest.mark.parametrize("layers", [2, 4, pytest.param(6, marks=pytest.mark.slow)])
def test_layers_searched_one_by_one_cost_the_same(layers, mesh):
    """Every layer a block of its own, nothing pinned, with the latencies of a real network."""
    model = BUILDERS["gpt2"](layers)
    short, long = (searched(model, mesh=mesh, network="fair", how={"shared": way}) for way in (True, False))
    assert [block.count for block in short.blocks] == [layers]
    assert [block.count for block in long.blocks] == [1] * layers
    assert short.objective_s == long.objective_s
    assert short.lower_bound_s == long.lower_bound_s


@pytest.mark.parametrize("odd", ["hidden size", "dropout p", "frozen weight"])
def test_an_odd_layer_never_merges(odd):
    """Layer 2 of 6 in a model without layers as modules; the layers before and after it do."""
    layers = merged(Listed(6, odd=odd))
    assert len(layers) == 5
    assert not [names for names in layers if "up.2" in names]


def test_layers_with_equal_dropout_merge():
    """The case above that changes p is odd for its p alone."""
    assert len(merged(Listed(6, odd="dropout"))) == 6


@pytest.mark.parametrize("odd", ["hidden size", "dropout p", "frozen weight"])
def test_an_odd_layer_of_gpt2_never_merges(odd):
    """The same in an unmodified model, made odd from outside: its odd half stands alone, its other half need not."""
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    model: Any = gpt2(6, resid_pdrop=0.1).train()
    layer = model.transformer.h[2]
    if odd == "hidden size":
        layer.mlp = GPT2MLP(160, model.config).double()
    elif odd == "dropout p":
        layer.mlp.dropout.p = 0.2
    else:
        layer.mlp.c_fc.weight.requires_grad_(False)
    layers = merged(model)
    assert len(layers) == 5
    assert not [names for names in layers if any(".h.2.mlp." in name for name in names)]


def plain(plan: Plan, names: dict[str, str]) -> Any:
    """The plan without its hashes, names put back."""
    text = json.dumps(plan.document() | {"plan_sha256": ""})
    for old, new in names.items():
        text = re.sub(rf"\b{new}\b", old, text)
    document = json.loads(text)
    document["fingerprint"]["graph_sha256"] = ""
    return document


@pytest.mark.parametrize("mesh", [{"dp": 2, "tp": 2}, None])
def test_renaming_everything_changes_nothing_but_names(mesh):
    """Every parameter under another name, in another alphabetical order."""
    first, second = (searched(Listed(4, renamed=renamed), mesh=mesh, network="fair") for renamed in (False, True))
    assert plain(first, {}) != plain(second, {})
    assert plain(first, {}) == plain(second, RENAMED)


def test_the_name_of_a_module_above_changes_nothing_but_names():
    """GPT-2 inside another module."""

    class Outer(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids: Any, labels: Any) -> Any:
            return self.inner(input_ids=input_ids, labels=labels)

    first, second = (searched(model, mesh={"tp": 2}) for model in (gpt2(2), Outer(gpt2(2))))
    assert {f"inner.{name}": place for name, place in first.placements.items()} == second.placements
    keys = ("objective_s", "assignment", "collectives", "memory")
    wanted, found = ({key: plan.document()[key] for key in keys} for plan in (first, second))
    for entry in found["collectives"]:
        entry["where"] = entry["where"].removeprefix("inner.")
    assert found == wanted


def test_reordering_independent_operations_changes_nothing():
    """Q, K and V computed in another order: the graph is the same one."""
    models = (Listed(4), Listed(4, reordered=True))
    first, second = (searched(model, mesh={"dp": 2, "tp": 2}, network="fair") for model in models)
    assert first.document() == second.document()


WORDS = (
    "gpt", "llama", "bert", "mixtral", "qwen", "whisper", "deepseek", "mistral", "gemma", "hugging", "q_proj",
    "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj", "self_attn", "c_attn", "c_proj", "c_fc",
    "lm_head", "wte", "wpe", "embed_tokens", "ln_f", "ln_1", "layernorm", "input_ids", "attention_mask",
    "encoder", "decoder", "mlp", "kimi",
)  # fmt: skip


# One takes part in transformers' registry of experts, whose members all have attributes of these names; the others
# stand in for two functions of transformers, which many of its models call by these names, and for its classes of
# experts that are not in the registry.
REGISTERED = [ROOT / "passes" / "trace" / name for name in ("experts.py", "delta_rule.py", "experts_apart.py")]


def test_no_model_is_known_by_name():
    """Neither the passes nor the cost model hold a word that only a model of somebody's would use."""
    pattern = re.compile(rf"(?<![a-z])({'|'.join(map(re.escape, WORDS))})(?![a-z])", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for layer in ("passes", "cost_model")
        for path in sorted((ROOT / layer).rglob("*.py")) if path not in REGISTERED
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []

"""Experts of Hugging Face's models are one operation of a trace each, whatever the model calls their parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from autopar.ir.graph import Graph, Node
from autopar.passes.fold import fold
from autopar.passes.prepare import canonical_graph
from autopar.passes.trace import trace
from autopar.passes.trace.experts import experts_as_one
from tests.families import FAMILIES

GATES = {
    "mixtral": "silu-glu", "qwen2-moe": "silu-glu", "qwen3-moe": "silu-glu", "deepseek-v3": "silu-glu",
    "olmoe": "silu-glu", "gpt-oss": "silu-glu pairs alpha=1.702 limit=7.0 shift=1.0", "granite-moe": "silu-glu",
}  # fmt: skip
BIASED = ("gpt-oss",)


def built(name: str, **config: Any) -> Any:
    model = FAMILIES[name].build()
    vars(model.config).update(config)
    return model


def traced(model: nn.Module) -> Graph:
    return trace(model, FAMILIES["mixtral"].batch()).graph


def experts_in(graph: Graph) -> list[Node]:
    return [node for part in (*graph.blocks, graph) for node in part.nodes if node.target == "autopar.experts"]


@pytest.mark.parametrize("name", GATES)
def test_a_layer_of_experts_is_one_operation(name: str) -> None:
    """With the model's gate, its weights as they are stored, and one more operation for a second bias."""
    model = built(name)
    graph = traced(model)
    found = experts_in(graph)
    assert {node.attr("gate") for node in found} == {GATES[name]}
    stored = {node.result.name: str(node.attr("fqn")) for node in graph.sources("param")}
    used = [stored[str(node.operands[3])].rpartition(".")[0] for node in found]
    assert used == [path for path, module in model.named_modules() if hasattr(module, "gate_up_proj")]
    biases = [node for node in graph.nodes if node.target == "autopar.expert_bias"]
    assert len(biases) == (len(found) if name in BIASED else 0)


@pytest.mark.parametrize("name", GATES)
def test_what_older_transformers_do_not_tell_is_not_asked_for(name: str) -> None:
    """5.0 leaves two marks of a layer of experts, 5.17 four, 5.23 six."""
    model = built(name)
    for module in model.modules():
        for mark in ("has_gate", "is_concatenated", "has_post_expert_norm", "_is_expert_parallel"):
            vars(module).pop(mark, None)
    assert {node.attr("gate") for node in experts_in(traced(model))} == {GATES[name]}


def test_layers_of_experts_fold_into_one_block() -> None:
    """As dense ones do, router included."""
    model = built("mixtral")
    folded = fold(canonical_graph(traced(model)))
    assert [len(experts_in(block)) for block in folded.blocks] == [1]
    assert [node.attr("count") for node in folded.nodes if node.target == "call"] == [2]


def test_the_model_is_left_as_it_was() -> None:
    """Registry, configuration and modules, also where a trace fails."""
    model = built("mixtral")
    before = sorted(ALL_EXPERTS_FUNCTIONS), dict(vars(model.config)), [sorted(vars(m)) for m in model.modules()]
    traced(model)
    with pytest.raises(ZeroDivisionError), experts_as_one(model):
        _ = 1 // 0
    after = sorted(ALL_EXPERTS_FUNCTIONS), dict(vars(model.config)), [sorted(vars(m)) for m in model.modules()]
    assert after == before


@pytest.mark.parametrize("limit", [0.5, 7.0, 12.0, 400.0, 1e5])
def test_what_a_gate_cuts_off_is_told_however_large_it_is(limit: float) -> None:
    model = built("gpt-oss")
    for layer in model.model.layers:
        layer.mlp.experts.limit = limit
    assert {node.attr("gate") for node in experts_in(traced(model))} == {
        f"silu-glu pairs alpha=1.702 limit={limit} shift=1.0"
    }


class Odd(nn.Module):
    """Not element by element."""

    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(-1)


class Swish(nn.Module):
    """By hand."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


def test_a_gate_that_no_text_says_keeps_the_models_own_way() -> None:
    """Then nothing stands for the experts but what the model does."""
    model = built("mixtral", _experts_implementation_internal="batched_mm")
    for layer in model.model.layers:
        layer.mlp.experts.act_fn = Odd()
    graph = traced(model)
    assert not experts_in(graph)
    softmaxes = [node for node in graph.nodes if node.target == "aten.softmax.int"]
    assert len(softmaxes) > len(model.model.layers)


def test_a_function_of_the_same_values_is_the_same_gate() -> None:
    """What counts is what it computes, not what it is called."""
    model = built("mixtral")
    for layer in model.model.layers:
        layer.mlp.experts.act_fn = Swish()
    assert {node.attr("gate") for node in experts_in(traced(model))} == {"silu-glu"}


def test_layers_with_other_gates_are_never_taken_for_the_same() -> None:
    """Even where nothing else tells them apart."""
    model = built("mixtral")
    model.model.layers[1].mlp.experts.act_fn = nn.GELU()
    assert [node.attr("gate") for node in experts_in(traced(model))] == ["silu-glu", "gelu-glu"]

"""Models of Hugging Face, tiny, as traced and after canonicalize."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from autopar.ir.graph import Graph
from autopar.ir.text import print_graph
from autopar.ir.verify import verify
from autopar.passes.canonicalize import canonicalize
from autopar.passes.fold import fold
from autopar.passes.order import canonical_form
from autopar.passes.trace import trace
from autopar.passes.unfold import unfold
from tests.fold.build import calls, disguised

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 64,
}  # fmt: skip
TOKENS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gpt2(layers: int) -> torch.nn.Module:
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=32, n_head=4, vocab_size=64, n_positions=32, **TOKENS
    )
    return transformers.GPT2LMHeadModel(config)


def llama(layers: int) -> torch.nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(num_hidden_layers=layers, num_key_value_heads=2, **SIZES)
    )


def bert(layers: int) -> torch.nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=layers, **SIZES))


def gemma2(layers: int) -> torch.nn.Module:
    """Every other layer looks at a window only."""
    return transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(
            num_hidden_layers=layers, num_key_value_heads=2, head_dim=8, sliding_window=4, **SIZES
        )
    )


def t5(layers: int) -> torch.nn.Module:
    sizes: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": layers}
    sizes.update(vocab_size=64, decoder_start_token_id=0)
    config = transformers.T5Config(**sizes)
    return transformers.T5ForConditionalGeneration(config)


def traced(model: torch.nn.Module) -> Graph:
    tokens = torch.zeros(2, 8, dtype=torch.long)
    return trace(model, {"input_ids": tokens, "labels": tokens}).graph


@pytest.mark.parametrize("canonical", [False, True])
@pytest.mark.parametrize(
    ("make", "layers", "expected"),
    [
        (gpt2, 2, [(2, 1)]), (gpt2, 6, [(6, 1)]),
        (llama, 2, [(2, 1)]), (llama, 4, [(4, 1)]),
        (bert, 2, [(2, 1)]), (bert, 6, [(6, 1)]),
        (gemma2, 4, [(2, 1)]),
        (t5, 2, [(2, 1), (2, 1)]), (t5, 4, [(4, 1), (4, 1)]),
    ],
)  # fmt: skip
def test_layers_fold_with_one_carried_value(
    make: Callable[[int], torch.nn.Module], layers: int, expected: list[tuple[int, int]], canonical: bool
):
    """The hidden state alone goes from layer to layer, and the law holds."""
    graph = traced(make(layers))
    graph = canonicalize(graph) if canonical else graph
    result = fold(graph)
    verify(result, after="fold")
    assert [(count, carried) for count, carried, _ in calls(result)] == expected
    assert canonical_form(unfold(result)) == canonical_form(graph)
    assert print_graph(fold(disguised(graph, random.Random(0)))) == print_graph(result)


@pytest.mark.parametrize(("layers", "expected"), [(6, [5]), (14, [1, 1, 2, 5, 5]), (26, [2, 4])])
def test_layers_of_two_kinds_are_never_merged(layers: int, expected: list[int]):
    """Gemma 3: after five layers that see a window one that sees all. Few periods are blocks of one kind and of one
    layer between them, many are calls of a block that holds a period, each layer as it is."""
    whole = [layer % 6 == 5 for layer in range(layers)]
    config = transformers.Gemma3TextConfig(
        num_hidden_layers=layers, num_key_value_heads=2, head_dim=8, sliding_window=4, **SIZES,
        layer_types=["full_attention" if each else "sliding_attention" for each in whole],
    )  # fmt: skip
    graph = canonicalize(traced(transformers.Gemma3ForCausalLM(config)))
    result = fold(graph)
    verify(result, after="fold")
    assert sorted(count for count, *_ in calls(result)) == expected
    assert canonical_form(unfold(result)) == canonical_form(graph)
    attention = [node for node in unfold(result).nodes if "scaled_dot_product" in node.target]
    assert [bool(node.attr("is_causal")) for node in attention] == whole  # the others are given a mask


def test_the_block_does_not_depend_on_depth():
    """Two layers and four: the same block."""
    assert fold(traced(llama(2))).blocks == fold(traced(llama(4))).blocks


class Listed(torch.nn.Module):
    """The repetition is in a loop over lists of parameters, in no module."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.up = torch.nn.ParameterList([torch.randn(8, 4) for _ in range(layers)])
        self.down = torch.nn.ParameterList([torch.randn(4, 8) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + torch.nn.functional.linear(torch.relu(torch.nn.functional.linear(x, up)), down)
        return x.sum()


def test_a_model_without_layers_as_modules_folds():
    """Only the graph is seen."""
    result = fold(trace(Listed(5), (torch.zeros(2, 4),)).graph)
    assert calls(result) == [(5, 1, 4)]
    assert result.sources("call")[0].attr("params") == tuple((f"up.{i}", f"down.{i}") for i in range(5))

"""What the op table says of linear attention, against what the models' functions do."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from autopar.ir.graph import Node, Value, sorted_attrs
from autopar.ir.optable import node_rule, row
from autopar.ir.rules import count_flops
from autopar.ir.types import TensorType
from autopar.runtime.delta_rule import delta_rule
from tests.linear.models import linear

FUNCTIONS = {
    "Qwen3Next": "transformers.models.qwen3_next.modeling_qwen3_next.torch_chunk_gated_delta_rule",
    "KimiLinear": "transformers.models.kimi_linear.modeling_kimi_linear.chunk_kimi_delta_attention",
}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
CHUNKS, HEADS = 4, 4


def case(name: str, d: int, v: int, c: int, dtype: str) -> tuple[list[torch.Tensor], Node]:
    linear(name)  # or skip
    s = c * CHUNKS
    shapes = [(2, s, HEADS, d)] * 2 + [(2, s, HEADS, v), (2, s, HEADS, *((d,) if name == "KimiLinear" else ()))]
    tensors = [torch.rand(shape, dtype=DTYPES[dtype]) for shape in (*shapes, (2, s, HEADS))]
    tensors[3] = -tensors[3].float()
    attrs = sorted_attrs({"function": FUNCTIONS[name], "chunk": c, "normalized": True})
    result = Value("y", TensorType(dtype, shapes[2]))
    node = Node(results=(result,), target="autopar.delta_rule", operands=tuple("qkvgb"), attrs=attrs)
    return [tensor.requires_grad_() for tensor in tensors], node


def run(tensors: list[torch.Tensor], node: Node) -> None:
    delta_rule(*tensors, **dict(node.attrs))  # type: ignore[arg-type]


def said(columns: str, tensors: list[torch.Tensor], node: Node) -> int:
    shapes = [tuple(tensor.shape) for tensor in tensors]
    return count_flops(columns, node_rule(node, shapes, [shapes[2]]).sizes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_autograd_keeps_what_the_row_says(name: str, dtype: str) -> None:
    """To a twentieth, at any size: every tensor that is saved for the backward, counted once."""
    for d, v, c in itertools.product((16, 48), (16, 32), (16, 64)):
        tensors, node = case(name, d, v, c, dtype)
        kept: dict[int, torch.UntypedStorage] = {}

        def keep(x: torch.Tensor, kept: dict[int, torch.UntypedStorage] = kept) -> torch.Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            run(tensors, node)
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        counted = sum(storage.nbytes() for at, storage in kept.items() if at not in given)
        assert counted == pytest.approx(4 * said(row(node).inner, tensors, node), rel=0.05)


def test_products_are_those_of_the_row() -> None:
    """What torch counts of the gated rule, whose triangular systems it leaves out: half a product each."""
    d, v, c = 32, 48, 16
    tensors, node = case("Qwen3Next", d, v, c, "f32")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run(tensors, node)
    tokens = math.prod(tensors[4].shape)
    systems = tokens * c * (d + v)
    assert counter.get_total_flops() + systems == said(row(node).flops, tensors, node)


def test_a_row_without_words_says_nothing() -> None:
    sizes = {"t": 3, "h": 5, "h2": 7, "e": 2}
    assert count_flops("", sizes) == 0
    assert count_flops("2 t h*", sizes) == 2 * 3 * 5 * 7
    assert count_flops("2 t h h2 /e + 4 t", sizes) == 3 * 5 * 7 + 12

"""A layer of linear attention is one operation, which names the model's own function; what it does not know is not."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autopar.ir.graph import Graph, Node
from autopar.passes.trace import trace
from autopar.passes.trace.delta_rule import delta_rules_as_one
from autopar.runtime.delta_rule import delta_rule
from tests.linear import plain
from tests.linear.models import MODELS, linear


def rules_in(graph: Graph) -> list[Node]:
    return [node for part in (*graph.blocks, graph) for node in part.nodes if node.target == "autopar.delta_rule"]


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_is_one_operation(name: str) -> None:
    """Of the model's own function, whatever the length; the module calls what it called before afterwards."""
    family = linear(name, num_hidden_layers=4, layer_types=["linear_attention", "full_attention"] * 2,
                    **({"mlp_layer_types": ["sparse"] * 4} if name == "KimiLinear" else {}))  # fmt: skip
    model = family.build()
    place = type(next(m for m in model.modules() if "Delta" in type(m).__name__)).__module__
    before = dict(vars(sys.modules[place]))
    graph = trace(model, family.batch()).graph
    found = rules_in(graph)
    assert len(found) == 2
    assert {str(node.attr("function")).rpartition(".")[0] for node in found} == {place}
    assert {node.attr("chunk") for node in found} == {64}
    assert vars(sys.modules[place]) == before


@pytest.mark.parametrize("name", ["Qwen3Next", "KimiLinear"])
@pytest.mark.parametrize("length", [1, 12, 64, 131])
def test_the_function_is_what_the_token_loop_says(name: str, length: int) -> None:
    """Numbers of the operation, and gradients, to float32's rounding: grouped heads, a chunk, several, padded ones."""
    linear(name)  # or skip
    found = next(n for n in ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention")
                 if hasattr(modelling(name), n))  # fmt: skip
    function = f"{modelling(name).__name__}.{found}"
    generator = torch.Generator().manual_seed(length)
    keys, heads = (2, 4) if name == "Qwen3Next" and grouped(name) else (4, 4)

    def draw(*shape: int) -> Tensor:
        return torch.randn(2, length, *shape, generator=generator, dtype=torch.float64)

    given = [draw(keys, 8), draw(keys, 8), draw(heads, 6), -draw(heads, *((8,) if name == "KimiLinear" else ())).abs(),
             draw(heads).sigmoid()]  # fmt: skip
    for each in given:
        each.requires_grad_()
    made = delta_rule(*given, function=function, chunk=64, normalized=True)
    wanted, _ = plain.recurrent(*given, use_qk_l2norm_in_kernel=True)
    weights = torch.randn(wanted.shape, generator=generator, dtype=torch.float64)
    grads, plain_grads = (torch.autograd.grad((y * weights).sum(), given) for y in (made, wanted))
    for mine, other in zip((made, *grads), (wanted, *plain_grads), strict=True):
        assert (mine - other).abs().max() <= 1e-4 * other.abs().max()


def modelling(name: str) -> Any:
    family = {"Qwen3Next": "qwen3_next", "KimiLinear": "kimi_linear"}[name]
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def grouped(name: str) -> bool:
    """Whether the function itself takes fewer heads of keys than of values: 5.17 repeats them before."""
    return "num_k_heads !=" in inspect.getsource(modelling(name).torch_chunk_gated_delta_rule)


def torch_chunk_gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, chunk_size: int = 32,
    initial_state: Tensor | None = None, output_final_state: bool = False, scale: float | None = None, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Of this module's models, found by its name as transformers' is; it takes a scale, as theirs does not."""
    del chunk_size, initial_state, kwargs
    made, _ = plain.bounded(query, key, value, g, beta)
    return made * (scale or 1.0), (made.sum() if output_final_state else None)


class Linear(nn.Module):
    """A layer that calls this module's function, with arguments of the test's."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how
        self.project = nn.Linear(8, 8, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(x).unflatten(-1, (2, 4))
        made, state = torch_chunk_gated_delta_rule(y, y, y, g=y.sum(-1), beta=y.mean(-1), **self.how)
        return made.flatten(-2) if state is None else made.flatten(-2) + state


@pytest.mark.parametrize(
    ("how", "operations", "chunk"),
    [
        ({}, 1, 32),
        ({"chunk_size": 16, "initial_state": None, "output_final_state": False, "scale": None}, 1, 16),
        ({"cu_seqlens": None, "unknown": 3}, 1, 32),
        ({"output_final_state": True}, 0, 0),
        ({"initial_state": torch.zeros(())}, 0, 0),
        ({"scale": 0.5}, 0, 0),
        ({"cu_seqlens": torch.zeros(2)}, 0, 0),
    ],
)
def test_what_the_operation_does_not_know_is_traced_as_the_model_has_it(
    how: dict[str, Any], operations: int, chunk: int
) -> None:
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    graph = trace(Linear(**how), (x,)).graph
    assert [node.attr("chunk") for node in rules_in(graph)] == [chunk] * operations


def test_a_function_that_a_module_holds_itself_is_found_too() -> None:
    """Before 5.17 each layer keeps it as an attribute."""

    class Holding(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.rule = torch_chunk_gated_delta_rule

        def forward(self, x: Tensor) -> Tensor:
            y = self.project(x).unflatten(-1, (2, 4))
            return self.rule(y, y, y, g=y.sum(-1), beta=y.mean(-1))[0]

    model = Holding()
    assert len(rules_in(trace(model, (torch.randn(3, 5, 8, dtype=torch.float64),)).graph)) == 1
    assert model.rule is torch_chunk_gated_delta_rule


def test_a_class_of_another_module_calls_what_its_base_calls() -> None:
    model = type("Elsewhere", (Linear,), {"__module__": "tests.linear.plain"})()
    assert len(rules_in(trace(model, (torch.randn(3, 5, 8, dtype=torch.float64),)).graph)) == 1


def test_all_is_as_before_where_a_trace_fails() -> None:
    function = torch_chunk_gated_delta_rule
    with pytest.raises(ZeroDivisionError, match="False"), delta_rules_as_one(Linear()):
        raise ZeroDivisionError(torch_chunk_gated_delta_rule is function)
    assert torch_chunk_gated_delta_rule is function

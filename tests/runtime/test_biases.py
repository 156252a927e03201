"""A product and its bias run as one operation where nothing stands between them, and only there."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import autopar
from autopar.ir.biases import MATMUL, products_with_bias
from autopar.ir.graph import Graph
from autopar.ir.text import parse_graph
from autopar.runtime.biases import matmul_with_bias, with_biases
from tests import harness

HEAD = """graph @main {
  %x: f64[8,4] = input() {}
  %w: f64[6,4] = param() {}
  %b: f64[6] = param() {}
  %y: f64[8,6] = aten.linear.default(%x, %w) {}
"""
APART = {
    "a product of each row of the batch": "  %s: f64[2,3,4] = input() {}\n  %t: f64[2,4,6] = input() {}\n"
    "  %p: f64[2,3,6] = aten.matmul.default(%s, %t) {}\n  %r: f64[2,3,6] = aten.add.Tensor(%p, %b) {}\n",
    "read twice": "  %z: f64[8,6] = aten.add.Tensor(%y, %b) {}\n  %r: f64[8,6] = aten.mul.Tensor(%z, %y) {}\n",
    "not a vector": "  %r: f64[8,6] = aten.add.Tensor(%y, %m) {}\n",
    "a multiple": "  %r: f64[8,6] = aten.add.Tensor(%y, %b) {alpha=2}\n",
    "one number": "  %r: f64[8,6] = aten.add.Tensor(%y, %one) {}\n",
    "another element type": "  %r: f64[8,6] = aten.add.Tensor(%y, %half) {}\n",
    "something between": "  %z: f64[8,6] = aten.neg.default(%y) {}\n  %r: f64[8,6] = aten.add.Tensor(%z, %b) {}\n",
}


def graph(rest: str, returned: str = "%r") -> Graph:
    given = "  %m: f64[8,6] = input() {}\n  %one: f64[1] = param() {}\n  %half: f32[6] = param() {}\n"
    return parse_graph(f"{HEAD}{given}{rest}  return {returned}\n}}\n")


def test_the_product_takes_the_bias_at_the_place_of_the_sum() -> None:
    made = graph("  %r: f64[8,6] = aten.add.Tensor(%y, %b) {}\n")
    nodes, once = with_biases(made, {"y": True})
    assert [node.target for node in nodes if node.operands] == ["aten.linear.default"]
    assert nodes[-1].operands == ("x", "w", "b") and nodes[-1].result.name == "r"
    assert once == {"r": True}


def test_so_does_one_with_a_matrix_as_it_is() -> None:
    made = graph(
        "  %v: f64[4,6] = param() {}\n  %p: f64[8,6] = aten.matmul.default(%x, %v) {}\n"
        "  %r: f64[8,6] = aten.add.Tensor(%p, %b) {}\n"
    )
    nodes, _ = with_biases(made, {})
    assert nodes[-1].target == MATMUL and nodes[-1].operands == ("x", "v", "b")


@pytest.mark.parametrize("shape", [(4,), (0, 4), (3, 4), (2, 3, 4), (2, 0, 4)], ids=str)
def test_a_matmul_with_a_bias_is_the_sum(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    given = [torch.randn(*of, dtype=torch.float64, requires_grad=True) for of in (shape, (4, 6), (6,))]
    x, weight, bias = given
    found, expected = matmul_with_bias(x, weight, bias), x @ weight + bias
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected)
    slope = torch.randn_like(expected)
    gradients = torch.autograd.grad(found, given, slope)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, given, slope))
    assert gradients[1].is_contiguous()


@pytest.mark.parametrize("rest", APART.values(), ids=APART)
def test_else_they_stay_apart(rest: str) -> None:
    made = graph(rest)
    assert with_biases(made, {"y": False}) == (made.nodes, {"y": False})


def test_a_converted_product_is_found_where_it_is_asked_for() -> None:
    text = (
        "  %z: f64[8,6] = comm.all_reduce(%y) {axis=\"tp\"}\n  %r: f64[8,6] = aten.add.Tensor(%z, %b) {}\n"
        "  %u: f64[8,6] = aten.mul.Tensor(%r, %OTHER) {}\n"
    )
    alone, also = (graph(text.replace("OTHER", other), "%u") for other in ("r", "z"))
    assert products_with_bias(alone) == products_with_bias(also, converted=True) == {}
    assert list(products_with_bias(alone, converted=True)) == ["r"]


def test_a_product_that_is_returned_is_made() -> None:
    made = graph("  %r: f64[8,6] = aten.add.Tensor(%y, %b) {}\n", "%r, %y")
    assert with_biases(made, {})[0] == made.nodes


def test_a_sum_that_is_kept_for_backward_is_made() -> None:
    made = graph("  %r: f64[8,6] = aten.add.Tensor(%y, %b) {}\n")
    assert with_biases(made, {"r": True})[0] == made.nodes


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.to(torch.float64)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return {"loss": x.square().mean()}


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def kernels(axis: str, recompute: str) -> Counter[str]:
    torch.manual_seed(0)
    model, batch = Layers(), {"x": torch.randn(8, 8, dtype=torch.float64)}
    ours = autopar.parallelize(model, batch, mesh={axis: 1}, recompute=recompute, num_microbatches=1)
    counted = Counted()
    with counted:
        ours(**ours.shard_inputs(batch))
    return counted.calls


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_a_forward_of_linear_layers_adds_nothing_apart(recompute: str) -> None:
    (calls,) = harness.run_processes(1, kernels, "dp", recompute)
    assert calls["aten::addmm"] == 4
    assert calls["aten::add"] == calls["aten::mm"] == 0

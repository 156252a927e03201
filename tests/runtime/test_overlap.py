"""Collectives are sent early and waited for late where work stands between; numbers and order stay."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from autopar.ir.mesh import Mesh
from autopar.ir.program import Program
from autopar.ir.text import parse_graph
from autopar.runtime import collectives
from autopar.runtime.devices import here
from autopar.runtime.module import ParallelModule
from autopar.runtime.parity import compare
from autopar.runtime.program import build
from autopar.runtime.simulate import simulate
from tests.harness import run_processes
from tests.lowered import lowered, model_of

# Two branches of one value: the sum of the first is needed only after the second.
BRANCHES = """
graph @branches {
  %x: f64[8,12] = input() {name="x"}
  %e: f64[12,12] = param() {fqn="e"}
  %a: f64[24,12] = param() {fqn="a"}
  %b: f64[12,24] = param() {fqn="b"}
  %c: f64[12,12] = param() {fqn="c"}
  %h: f64[8,12] = aten.linear.default(%x, %e) {}
  %u: f64[8,24] = aten.linear.default(%h, %a) {}
  %v: f64[8,12] = aten.linear.default(%u, %b) {}
  %w: f64[8,12] = aten.linear.default(%h, %c) {}
  %t: f64[8,12] = aten.tanh.default(%v) {}
  %p: f64[8,12] = aten.mul.Tensor(%t, %w) {}
  %l: f64[] = aten.sum.default(%p) {}
  return %l
}
"""
TP = Mesh((("tp", 2),))


def program() -> Program:
    choices = {"u": {"tp": "n"}, "v": {"tp": "k"}}
    return lowered(model_of(parse_graph(BRANCHES)), TP, choices, {"a": "tp:S(0)", "b": "tp:S(1)"})


def tensors() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"e": (12, 12), "a": (24, 12), "b": (12, 24), "c": (12, 12)}
    made = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return {"x": torch.randn(8, 12, generator=generator, dtype=torch.float64)}, made


def run() -> dict[str, Any]:
    """A step's numbers, what the graph calls, and the collectives as they were sent."""
    inputs, weights = tensors()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    at = here(TP, mesh)
    graph = build(program().graph, at.coordinate, at.groups, at.device, overlap=True).graph
    plain = build(program().graph, at.coordinate, at.groups, at.device).graph
    sent: list[tuple[str, bool]] = []
    begin = dist.all_reduce

    def seen(tensor: Tensor, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        sent.append((str(tuple(tensor.shape)), async_op))
        return begin(tensor, *args, **kwargs, async_op=async_op)  # type: ignore[misc]

    module = ParallelModule(program(), mesh, weights.__getitem__)
    collectives.dist.all_reduce = seen  # type: ignore[attr-defined]
    try:
        loss = module.train_step(**inputs)
    finally:
        collectives.dist.all_reduce = begin  # type: ignore[attr-defined]
    gradients = {}
    for name, parameter in module.named_parameters():
        assert isinstance(parameter.grad, DTensor)
        gradients[name] = parameter.grad.full_tensor()
    names = [[getattr(n.target, "__name__", str(n.target)) for n in g.nodes if n.op == "call_function"]
             for g in (graph, plain)]  # fmt: skip
    return {"loss": loss, "gradients": gradients, "nodes": names[0], "plain": names[1], "sent": sent}


def test_a_sum_is_waited_for_after_the_work_beside_it() -> None:
    """Forward and backward have the numbers of one device, and every rank sends the same in the same order."""
    inputs, weights = tensors()
    expected = simulate(program(), inputs, weights)
    assert expected.loss is not None
    found = run_processes(2, run)
    for each in found:
        compare({"loss": each["loss"]}, {"loss": expected.loss}, tol=1e-12, what="loss")
        compare(each["gradients"], expected.gradients, tol=1e-12, what="gradients")
        nodes = each["nodes"]
        sent, received = nodes.index("send_all_reduce_tp"), nodes.index("receive_all_reduce_tp")
        assert nodes[sent + 1 : received] == ["linear"] and nodes[received + 1] == "tanh"
        assert not any(name.startswith("send") for name in each["plain"])
        # the agreement, the sum sent ahead, and its like backward, which autograd sends before the other branch
        assert each["sent"] == [("(3,)", False), ("(8, 12)", True), ("(8, 12)", False)]
    assert found[0]["sent"] == found[1]["sent"] and found[0]["nodes"] == found[1]["nodes"]

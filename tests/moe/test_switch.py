"""Switch Transformers: experts that are modules of their own, chosen by a mask, are one operation of a trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from autopar.ir.errors import UnsupportedError
from autopar.passes.trace import trace
from tests.families import FAMILIES
from tests.harness import run_processes
from tests.moe.routers import trained
from tests.moe.test_trace import experts_in

FAMILY = FAMILIES["switch"]


def sparse(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ == "SwitchTransformersExperts"]


def test_its_experts_are_one_operation_each() -> None:
    """And afterwards its classes do what they did."""
    model = FAMILY.build()
    before = type(sparse(model)[0]).forward, nn.Module.to
    graph = trace(model, FAMILY.batch()).graph
    assert [node.attr("gate") for node in experts_in(graph)] == ["relu"] * len(sparse(model))
    assert (type(sparse(model)[0]).forward, nn.Module.to) == before
    names = {str(node.attr("fqn")) for node in graph.sources("param")}
    assert names == {name for name, _ in model.named_parameters()}


def test_dropout_inside_experts_is_refused() -> None:
    model = FAMILY.build()
    for experts in sparse(model):
        for expert in experts.values():
            expert.dropout.p = 0.1
    with pytest.raises(UnsupportedError, match=r"dropout of 0.1 inside the experts.*dropout_rate=0"):
        trace(model, FAMILY.batch())


def test_a_router_of_another_type_than_its_weights_is_converted_in_forward() -> None:
    """Its classifier is, in the trace alone: as with router_dtype float32 and all else in bfloat16."""
    model = FAMILY.build().float()
    graph = trace(model, FAMILY.batch()).graph
    routers: list[Any] = [one for one in model.modules() if type(one).__name__ == "SwitchTransformersTop1Router"]
    weights = {node.result.name for node in graph.sources("param") if "classifier" in str(node.attr("fqn"))}
    into = {node.result.type.dtype for node in graph.nodes if set(node.uses()) & weights}
    assert routers and len(weights) == len(routers) and into == {"f64"}
    assert {router.classifier.weight.dtype for router in routers} == {torch.float32}
    assert not any("forward" in vars(router.classifier) for router in routers)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_gradients_of_a_converted_router_are_those_of_one_device() -> None:
    exact, rough = run_processes(2, trained, timeout_s=150)[0]
    assert 0 < exact < 1e-9
    assert 0 < rough < 1e-6

"""Switch Transformers: experts that are modules of their own, chosen by a mask, are one operation of a trace."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from autopar.ir.errors import UnsupportedError
from autopar.passes.trace import trace
from tests.families import FAMILIES
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


def test_a_router_of_another_type_than_its_weights_is_refused() -> None:
    """Its classifier would be converted in forward, parameters and all."""
    model = FAMILY.build().float()
    with pytest.raises(UnsupportedError, match=r"torch.float32 to torch.float64.*router_dtype"):
        trace(model, FAMILY.batch())

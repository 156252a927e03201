"""Switch Transformers: experts that are modules of their own, chosen by a mask, are one operation of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autopar.passes.trace import experts_apart, trace
from autopar.runtime.experts import experts as experts_op
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


def test_dropout_inside_experts_is_drawn_by_token() -> None:
    """As many numbers as the experts' inner dim has, in training alone; what stays is divided by its share."""
    model: Any = FAMILY.build()
    for experts in sparse(model):
        for expert in experts.values():
            expert.dropout.p = 0.2
    made = experts_in(graph := trace(model, FAMILY.batch()).graph)
    kept = [graph.values()[str(node.operands[6])].type for node in made]
    assert {(type_.dtype, type_.shape[1]) for type_ in kept} == {("bool", model.config.d_ff)}
    assert {node.attr("kept_factor") for node in made} == {1.25}
    assert all(len(node.operands) < 7 for node in experts_in(trace(model.eval(), FAMILY.batch()).graph))


def test_one_device_drops_what_the_model_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unmodified model, its dropouts by token and column in place of a draw each, and the traced one."""

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        kept = torch.arange(x.shape[-1]) % 3 > 0
        return x * kept / (1 - p) if p > 0 and training else x

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    model: Any = FAMILY.build()
    for experts in sparse(model):
        for expert in experts.values():
            expert.dropout.p = 0.2
    batch = FAMILY.batch()
    expected = model(**batch).loss
    wanted: Sequence[Tensor | None] = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)

    def computed(*given: Any, kept: Tensor | None, **how: Any) -> Tensor:
        return experts_op(*(*given, None, kept), **how)

    monkeypatch.setattr(experts_apart, "_experts", computed)
    with experts_apart.experts_stacked(model):
        found = model(**batch).loss
    got: Sequence[Tensor | None] = torch.autograd.grad(found, list(model.parameters()), allow_unused=True)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for one, other in zip(got, wanted, strict=True):
        if other is None:  # of an expert that no token chose
            assert one is None or not one.any()
        else:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


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

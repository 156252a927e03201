"""One comparison for all tests here: model, traced graph and canonical graph, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from autopar.ir.graph import Graph
from autopar.passes.canonicalize import canonicalize
from autopar.passes.trace import Traced, trace
from tests.trace.interpreter import run, sources_of


def doubled(tree: Any) -> Any:
    return tree_map(lambda x: x.double() if x.is_floating_point() else x, tree)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    gap = (a.detach().double() - b.detach().double()).abs().nan_to_num(posinf=0.0)
    return float(gap.max()) if a.numel() else 0.0


def assert_same(
    model: nn.Module, inputs: Any, *, tolerance: float = 1e-12, loss_fn: Any = None
) -> tuple[Traced, Graph]:
    """Traced and canonical graph give the model's outputs and gradients; both are returned."""
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, dict) else (tuple(inputs), {})
    traced = trace(model, inputs, loss_fn=loss_fn)
    graph = canonicalize(traced.graph)
    assert canonicalize(graph) == graph
    if loss_fn is not None:
        target = kwargs.pop("target") if kwargs else args[-1]
        args = args[:-1]
    for form in (traced.graph, graph):
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        call = (args, kwargs) if loss_fn is None else (args, {**kwargs, "target": target})
        sources = sources_of(model, traced, traced.in_spec.flatten_call(*call))
        written: dict[str, torch.Tensor] = {}
        results = run(form, sources, written)
        model.zero_grad()
        for module in model.modules():
            if hasattr(module, "config"):
                vars(module.config)["use_cache"] = False
        expected = model(*args, **kwargs)
        if loss_fn is not None:
            expected = (loss_fn(expected, target), expected)
        restored = traced.out_spec.unflatten(results)
        assert type(restored) is type(expected) or isinstance(expected, torch.Tensor)
        wanted = tree_leaves(expected)
        for got, want in zip(tree_leaves(restored), wanted, strict=True):
            if isinstance(want, torch.Tensor):
                assert distance(got, want) <= tolerance
            else:
                assert got == want
        assert sorted(written) == sorted(traced.updates)
        for fqn, buffer in model.named_buffers():
            assert distance(written.get(fqn, before[fqn]), buffer) <= tolerance, fqn
        _assert_same_gradients(model, results, wanted, sources, tolerance)
        for name, buffer in model.named_buffers():
            buffer.data.copy_(before[name])
    return traced, graph


def _assert_same_gradients(
    model: nn.Module, results: list[torch.Tensor], wanted: list[Any], sources: Any, tolerance: float
) -> None:
    pairs = list(zip(results, [want for want in wanted if isinstance(want, torch.Tensor)], strict=False))
    ours = [got.sum() for got, want in pairs if want.requires_grad]
    theirs = [want.sum() for _, want in pairs if want.requires_grad]
    if not theirs:
        return
    torch.stack(ours).sum().backward()
    torch.stack(theirs).sum().backward()
    for fqn, parameter in model.named_parameters():
        got, want = sources[fqn].grad, parameter.grad
        if want is None:
            assert got is None or not got.any(), fqn
        else:
            assert got is not None, fqn
            assert distance(got, want) <= tolerance * max(1.0, float(want.abs().max())), fqn

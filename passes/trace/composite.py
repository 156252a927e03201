"""Operations that torch itself makes of others, written out where nothing is known of them as a whole.

``einsum``, ``cosine_similarity`` or ``hstack`` need no rules of their own: torch computes them, and their
gradients, by simpler operations, and those are what the graph then holds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from autopar.passes.trace.writes import RESHAPING

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def write_out(module: fx.GraphModule, known: Callable[[str], bool]) -> None:
    """Replace calls of composite operations that are not ``known`` in ``module`` and the regions inside it.

    Ensures: the same values and gradients. A call that torch cannot write out without its data stays.
    """
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            for node in list(part.graph.nodes):
                if _is_composite(node) and not known(str(node.target)):
                    _write_out(part.graph, node)


def _is_composite(node: fx.Node) -> bool:
    op = node.target
    if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload) or op._schema.is_mutable:
        return False
    results = node.meta.get("val")
    results = results if isinstance(results, (list, tuple)) else (results,)
    return op.has_kernel_for_dispatch_key(_COMPOSITE) and all(isinstance(item, torch.Tensor) for item in results)


def _write_out(graph: fx.Graph, node: fx.Node) -> None:
    inputs = [item for item in node.all_input_nodes if isinstance(item.meta.get("val"), torch.Tensor)]
    if len(inputs) != len(node.all_input_nodes):
        return

    def body(*tensors: torch.Tensor) -> Any:
        given = dict(zip(inputs, tensors, strict=True))
        args, kwargs = fx.map_arg((node.args, node.kwargs), given.__getitem__)
        return node.target.decompose(*args, **kwargs)  # type: ignore[union-attr]

    try:
        steps = make_fx(body)(*(item.meta["val"] for item in inputs)).graph
    except (RuntimeError, NotImplementedError):  # it looks at values, which a trace does not have
        return
    if not all(_is_plain(step, node) for step in steps.nodes):
        return
    places = iter(inputs)
    made: dict[fx.Node, fx.Node] = {}
    with graph.inserting_before(node):
        for step in steps.nodes:
            if step.op == "placeholder":
                made[step] = next(places)
            elif step.op == "output":
                _use_instead(graph, node, fx.map_arg(step.args[0], made.__getitem__))
            else:
                made[step] = graph.node_copy(step, made.__getitem__)
                made[step].meta = {**node.meta, "val": step.meta.get("val")}
                if step.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
                    made[step].target = torch.ops.aten.reshape.default  # strides are no part of the graph
                elif _reshapes(step):  # of a tensor of its own: what uses it from here on uses the result
                    made[step].target = _not_in_place(step.target)
                    made[step.args[0]] = made[step]


def _reshapes(step: fx.Node) -> bool:
    """Whether a step writes to how its first tensor lies in memory."""
    op = step.target
    return isinstance(op, torch._ops.OpOverload) and op._schema.name.removeprefix("aten::") in RESHAPING


def _not_in_place(op: Any) -> Any:
    packet = getattr(torch.ops.aten, op._schema.name.removeprefix("aten::").removesuffix("_"))
    taken = [str(argument.type) for argument in op._schema.arguments]
    every = (getattr(packet, name) for name in packet.overloads())
    return next(each for each in every if [str(argument.type) for argument in each._schema.arguments] == taken)


def _is_plain(step: fx.Node, node: fx.Node) -> bool:
    """Whether a step is an operation of tensors that writes at most to its first, and not ``node`` again."""
    if step.op != "call_function" or step.target is operator.getitem:
        return step.op != "get_attr"
    op = step.target
    if not isinstance(op, torch._ops.OpOverload) or op is node.target or step.meta.get("val") is None:
        return False
    if _reshapes(step) and (step.args[0].op == "placeholder" or op._opname in ("resize_", "set_")):  # type: ignore[union-attr]
        return False
    return not any(argument.is_write for argument in op._schema.arguments[1:])


def _use_instead(graph: fx.Graph, node: fx.Node, results: Any) -> None:
    """Uses of ``node`` become uses of ``results``, which keep the stand-ins that later views share memory with."""
    if isinstance(results, fx.Node):
        results.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(results)
    else:
        for user in list(node.users):
            at = user.args[1]
            assert isinstance(at, int)
            results[at].meta["val"] = node.meta["val"][at]
            user.replace_all_uses_with(results[at])
            graph.erase_node(user)
    graph.erase_node(node)

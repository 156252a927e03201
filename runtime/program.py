"""From a lowered graph to an ``fx.GraphModule`` that one device runs.

Every node becomes one call of a function resolved beforehand. A block's module takes its inputs, then the
tensors of its parameters, so that one module serves all instances of the block; the main graph takes its
inputs, then the tensors of the parameters that it names itself. What vanishes: conversions that FSDP2 performs,
those over microbatches, which the schedule performs, and sums that wait for the end of a step (``step_sums.py``). A
module writes nothing: the new values of buffers end its outputs (``written``), for whoever runs it to store.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import fx

from autopar.ir.biases import MATMUL
from autopar.ir.errors import IRError
from autopar.ir.graph import ASSIGN, Graph, Node, Operand, assigned
from autopar.ir.mesh import across, within
from autopar.ir.optable import row
from autopar.ir.program import MICROBATCH_AXIS
from autopar.runtime.biases import matmul_with_bias, with_biases
from autopar.runtime.collectives import conversion, move
from autopar.runtime.moves import of_node
from autopar.runtime.native import native
from autopar.runtime.ops import bind
from autopar.runtime.overlap import Sent, spread
from autopar.runtime.tape import run_once, sent_once

# Operations that are worth a collective's time.
HEAVY = ("matmul", "attention", "conv")

# What stands for a ``call`` node: operands in, results out.
Call = Callable[..., tuple[torch.Tensor, ...]]

# A function with its arguments.
Bound: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def stored_nodes(graph: Graph) -> tuple[Node, ...]:
    """Nodes whose tensors the module takes after its inputs, in that order."""
    return tuple(node for node in graph.nodes if node.target in ("param", "buffer", "constant"))


def written(graph: Graph) -> tuple[Node, ...]:
    """Buffers whose new values end the outputs of the module, in that order."""
    stored = graph.producers()
    return tuple(
        stored[buffer] for node in graph.nodes if node.target == ASSIGN for buffer, _ in assigned(node)
    )


def build(
    graph: Graph,
    coordinate: Mapping[str, int],
    groups: Mapping[str, dist.ProcessGroup],
    device: torch.device,
    *,
    calls: Callable[[Node], Call] | None = None,
    once: Mapping[str, bool] | None = None,
    overlap: bool = False,
) -> fx.GraphModule:
    """The graph as a module: ``module(*inputs, *stored) -> outputs and new values of buffers, one tuple``.

    ``coordinate``: this device's position on each axis; ``groups``: its process group along each axis
    (axes of size 1 may be absent); ``calls`` gives the function behind each ``call`` node; ``once`` the nodes that
    run once though the graph is recomputed, and whether their results are kept (``ir/recompute.py``); with ``overlap``
    collectives are waited for where their results are needed (``overlap.py``).
    """
    built = fx.Graph()
    values: dict[str, fx.Node] = {}
    news: list[fx.Node] = []
    stored = {node.result.name for node in graph.sources("param")}
    sent: list[Sent] = []
    heavy: set[fx.Node] = set()
    for node in (*graph.sources("input"), *stored_nodes(graph)):
        values[node.result.name] = built.placeholder(_identifier(node.result.name))
    nodes, single = with_biases(graph, once or {})
    for node in nodes:
        if node.target in ("input", "param", "buffer", "constant"):
            continue
        operands = tuple(_operand(operand, values) for operand in node.operands)
        if node.target == ASSIGN:
            values[node.result.name] = operands[0]
            news += [values[new] for _, new in assigned(node)]
            continue
        if node.target.startswith("comm."):
            of_parameter = next(node.uses()) in stored
            found = _conversion(built, node, operands[0], groups, single, of_parameter)
            values[node.result.name] = found
            stored.update([node.result.name] if of_parameter else [])
            if found is not operands[0] and not of_parameter:
                sent.append((found, of_node(node), groups[str(node.attr("axis"))]))
            continue
        bound: Bound
        if node.target == "call":
            if calls is None:
                raise IRError(f"@{graph.name}: a call inside a block")
            bound = _named(calls(node), f"call_{node.attr('block')}"), operands, {}
        elif node.target == MATMUL and len(operands) == 3:
            bound = matmul_with_bias, operands, {}
        else:
            bound = _among(bind(node, operands, coordinate, device), node, groups)
        made, results = _operation(built, node, bound, single)
        values.update(results)
        if node.target == "call" or row(node).op_class in HEAVY:
            heavy.add(made)
    if overlap:
        spread(built, sent, heavy)
    built.output((*(values[name] for name in graph.outputs), *news))
    built.lint()
    return fx.GraphModule(torch.nn.Module(), built, class_name=_identifier(graph.name))


def _among(bound: Bound, node: Node, groups: Mapping[str, dist.ProcessGroup]) -> Bound:
    """The call, given the names of the groups that an operation exchanges among."""
    function, args, kwargs = bound
    found = tuple(groups[part].group_name for part in exchanging(node))
    return (function, args, {**kwargs, "groups": found}) if found else bound


def exchanging(node: Node) -> tuple[str, ...]:
    """The axis along which an operation exchanges rows, or its two parts through which they go one after the other."""
    axis, inside = node.attr("exchange"), node.attr("inside")
    if axis is None:
        return ()
    return (str(axis),) if inside is None else (within(str(axis)), across(str(axis)))


def _operation(
    built: fx.Graph, node: Node, bound: Bound, once: Mapping[str, bool]
) -> tuple[fx.Node, dict[str, fx.Node]]:
    """The call of the node's function, and the node's results by name."""
    function, args, kwargs = bound
    several = node.target == "call" or len(node.results) > 1 or _returns_list(function)
    if node.results[0].name in once:
        function = run_once(function, kept=once[node.results[0].name])
    made = built.create_node("call_function", native(function), args, kwargs)
    results = {
        value.name: built.call_function(operator.getitem, (made, index)) if several else made
        for index, value in enumerate(node.results)
    }
    return made, results


def _conversion(
    built: fx.Graph, node: Node, operand: Any, groups: Mapping[str, dist.ProcessGroup], once: Mapping[str, bool],
    of_parameter: bool,
) -> fx.Node:
    step = of_node(node)
    axis = step.forward.axis
    if axis == MICROBATCH_AXIS and step.forward.kind not in ("identity", "all_reduce"):
        raise IRError(f"{node.result.name} = {node.target}: no value but the loss crosses microbatches")
    if step.runtime_owned or step.once or axis == MICROBATCH_AXIS or axis not in groups:
        assert isinstance(operand, fx.Node)
        return operand
    mover = sent_once(move, kept=once[node.result.name]) if node.result.name in once else move
    return built.call_function(conversion(step, groups[axis], mover, wide=of_parameter), (operand,))


def _operand(operand: Operand, values: Mapping[str, fx.Node]) -> Any:
    if isinstance(operand, tuple):
        return tuple(None if name is None else values[name] for name in operand)
    return None if operand is None else values[operand]


def _returns_list(function: Callable[..., Any]) -> bool:
    schema = getattr(function, "_schema", None)
    return schema is not None and (
        len(schema.returns) > 1
        or "[]" in str(schema.returns[0].type)
        or "List" in str(schema.returns[0].type)
    )


def _named(function: Call, name: str) -> Call:
    """fx prints a function by its name."""

    def call(*values: Any) -> tuple[torch.Tensor, ...]:
        return function(*values)

    call.__name__ = _identifier(name)
    return call


def _identifier(name: str) -> str:
    """A Python name: values of blocks are numbers, and a value may be called like a keyword."""
    return "v_" + "".join(letter if letter.isalnum() else "_" for letter in name)

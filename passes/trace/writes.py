"""In-place operations as the functional ones they stand for."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from autopar.ir.errors import UnsupportedError
from autopar.ir.types import TensorType
from autopar.passes.trace.aliases import Emit
from autopar.passes.trace.arguments import Lookup, bind, to_attr
from autopar.passes.trace.dtypes import tensor_type

_EVEN = 0.5  # the probability that bernoulli_ takes where none is given
# Writes whose functional form is not the name without its last underscore.
_RENAMED = {"normal_": "normal_functional", "bernoulli_": "bernoulli"}
RESHAPING = ("resize_", "unsqueeze_", "squeeze_", "transpose_", "t_", "swapaxes_", "swapdims_", "set_")
"""Writes to how a tensor lies in memory."""


def is_write(node: fx.Node) -> bool:
    """Whether a call changes one of its arguments."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or str(target) == "aten.detach_.default":
        return False
    return target._schema.is_mutable


def tracks_statistics(node: fx.Node) -> bool:
    """Whether a call is a batch_norm that trains and keeps running statistics, which it then changes."""
    if node.target is not torch.ops.aten.batch_norm.default:
        return False
    _, _, _, mean, variance, training, *_ = node.args
    return bool(training) and isinstance(mean, fx.Node) and isinstance(variance, fx.Node)


def unseen_write(op: str, source: str) -> UnsupportedError:
    """Of a write that autograd does not see, to a tensor that has a gradient, which stays as it was."""
    return UnsupportedError(
        f"{op} writes to a tensor that has a gradient where autograd does not see it, under no_grad or through detach "
        f"({source}); write x = x + (new - x).detach(), which means the same, or x = x.detach() for x.detach_()"
    )


def written_argument(node: fx.Node, op: torch._ops.OpOverload, source: str) -> fx.Node:
    """What a call writes: its first argument, or ``out``. UnsupportedError if that is more, or unknown."""
    written = [argument.name for argument in op._schema.arguments if argument.is_write]
    found = node.kwargs.get("out") if written == ["out"] else node.args[0] if node.args else None
    if written not in (["out"], [op._schema.arguments[0].name]) or not isinstance(found, fx.Node):
        raise _refused(op, source)
    return found


def written_value(node: fx.Node, op: torch._ops.OpOverload, lookup: Lookup, emit: Emit, source: str) -> str:
    """The value that the written argument of ``node`` holds after it; UnsupportedError if that is unknown."""
    self_node, name = written_argument(node, op, source), op._schema.name.removeprefix("aten::")
    if name in RESHAPING:
        raise _refused(op, source)
    val: torch.Tensor = self_node.meta["val"]
    type_ = tensor_type(val, source)
    if "out" in node.kwargs:
        node.kwargs = {key: value for key, value in node.kwargs.items() if key != "out"}
        value, made = _emitted(node, _without_out(op, source), lookup, emit, source)
        if made.shape != type_.shape:
            raise _refused(op, source)
        return _fitted(value, made, type_, emit, source)
    if name in ("zero_", "fill_") and not (len(node.args) > 1 and isinstance(node.args[1], fx.Node)):
        number = to_attr(node.args[1], source) if name == "fill_" else 0
        attrs = {"size": type_.shape, "fill_value": number, "dtype": type_.dtype}
        return emit("aten.full.default", (), attrs, type_, source)
    if name in ("copy_", "fill_"):
        given = node.args[1]
        assert isinstance(given, fx.Node)
        return _fitted(lookup(given), tensor_type(given.meta["val"], source), type_, emit, source)
    functional = _functional(op, name, source)
    if name == "bernoulli_" and len(node.args) == 1 and not node.kwargs:
        node.args = (self_node, _EVEN)
    value, made = _emitted(node, functional, lookup, emit, source)
    return _fitted(value, made, type_, emit, source)


def _emitted(
    node: fx.Node, functional: torch._ops.OpOverload, lookup: Lookup, emit: Emit, source: str
) -> tuple[str, TensorType]:
    """The call with that operation, and the type of its result."""
    operands, attrs = bind(node, functional, lookup, source)
    val_of = _values(node)
    made = tensor_type(functional(*val_of[0], **val_of[1]), source)
    return emit(str(functional), tuple(operands), attrs, made, source), made


def _without_out(op: torch._ops.OpOverload, source: str) -> torch._ops.OpOverload:
    """The overload that takes the same arguments and returns its result."""
    wanted = [(argument.name, str(argument.type)) for argument in op._schema.arguments if argument.name != "out"]
    for name in op.overloadpacket.overloads():
        found: torch._ops.OpOverload = getattr(op.overloadpacket, name)
        if [(argument.name, str(argument.type)) for argument in found._schema.arguments] == wanted:
            return found
    raise _refused(op, source)


def _functional(op: torch._ops.OpOverload, name: str, source: str) -> torch._ops.OpOverload:
    base = (
        name.replace("__i", "__", 1) if name.startswith("__i") else _RENAMED.get(name, name.removesuffix("_"))
    )
    overload = "p" if name == "bernoulli_" else op._overloadname
    packet = getattr(torch.ops.aten, base, None) if op.namespace == "aten" else None
    found = getattr(packet, overload, None)
    if not isinstance(found, torch._ops.OpOverload) or found._schema.is_mutable:
        raise _refused(op, source)
    return found


def _fitted(value: str, have: TensorType, want: TensorType, emit: Emit, source: str) -> str:
    if have.dtype != want.dtype:
        have = TensorType(want.dtype, have.shape)
        value = emit("aten.to.dtype", (value,), {"dtype": want.dtype}, have, source)
    if have.shape != want.shape:
        value = emit("aten.expand.default", (value,), {"size": want.shape}, want, source)
    return value


def _values(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The fake tensors that the call was traced with."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda item: item.meta["val"])
    return tuple(args), dict(kwargs)


def _refused(op: torch._ops.OpOverload, source: str) -> UnsupportedError:
    return UnsupportedError(
        f"the in-place operation {op} is not supported ({source}); use its functional form instead"
    )

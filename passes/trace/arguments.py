"""Arguments of an fx call, sorted by the schema of its operation into operands and attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from autopar.ir.errors import UnsupportedError
from autopar.ir.graph import Operand
from autopar.ir.types import Attr
from autopar.passes.trace.dtypes import dtype_name

# The runtime decides where and how a tensor lies in memory.
_PLACEMENT = ("device", "layout", "memory_format", "pin_memory", "non_blocking")

Lookup = Callable[[fx.Node], str]


def bind(
    node: fx.Node, op: torch._ops.OpOverload, lookup: Lookup, where: str
) -> tuple[list[Operand], dict[str, Attr]]:
    """Operands in the order of the schema and attributes by its names, defaults left out.

    A number given where the schema has a tensor is the operand None and an attribute of that name.
    """
    operands: list[Operand] = []
    attrs: dict[str, Attr] = {}
    for at, argument in enumerate(op._schema.arguments):
        given = argument.default_value
        if argument.name in node.kwargs:
            given = node.kwargs[argument.name]
        elif at < len(node.args) and not argument.kwarg_only:
            given = node.args[at]
        if "Tensor" in str(argument.type):
            if given is None or isinstance(given, fx.Node):
                operands.append(None if given is None else lookup(given))
            elif isinstance(given, (list, tuple)):
                operands.append(tuple(None if item is None else lookup(item) for item in given))
            else:
                operands.append(None)
                attrs[argument.name] = to_attr(given, where)
        elif argument.name not in _PLACEMENT and not _is_default(given, argument):
            attrs[argument.name] = to_attr(given, where)
    while operands and operands[-1] is None:
        operands.pop()
    return operands, attrs


def _is_default(given: Any, argument: Any) -> bool:
    if given is None:
        return True
    default = argument.default_value
    if isinstance(given, (list, tuple)) and isinstance(default, (list, tuple)):
        return list(given) == list(default)
    return type(given) is type(default) and bool(given == default)


def to_attr(given: Any, where: str) -> Attr:
    """Plain data; UnsupportedError for a number that depends on the data of a tensor."""
    if given is None or isinstance(given, (bool, int, float, str)):
        return given
    if isinstance(given, (list, tuple)):
        return tuple(to_attr(item, where) for item in given)
    if isinstance(given, torch.dtype):
        return dtype_name(given, where)
    if isinstance(given, (torch.SymInt, torch.SymFloat, torch.SymBool, fx.Node)):
        raise UnsupportedError(
            f"a number depends on the values of a tensor ({where}): .item(), .tolist() and the like have "
            f"no place in a traced model; keep the value in a tensor"
        )
    raise UnsupportedError(f"an argument of type {type(given).__name__} is not supported ({where})")

"""A call of an operation on which a rule is tried: given by the user, or drawn to fit the rule's text."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autopar.ir.errors import UsageError
from autopar.ir.graph import Node, Operand, Value, sorted_attrs
from autopar.ir.registry import parse
from autopar.ir.rules import Row
from autopar.ir.types import Attr, TensorType
from autopar.runtime.dtypes import IR_DTYPES
from autopar.runtime.ops import run_node

# Sizes of the factors of a drawn call, in order: all divide by 2, most by 3, neighbours differ.
SIZES = (6, 4, 12, 8, 10, 18)
LEADING_DIMS = 2  # that ``*b`` stands for


@dataclass(frozen=True, kw_only=True)
class Call:
    """A node and its tensors, flattened as rules number them (None: absent)."""

    node: Node
    tensors: tuple[Tensor | None, ...]

    def run(self, tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """The operation's results on other tensors in the same places."""
        left = iter(tensors)
        values: list[Any] = [
            tuple(next(left) for _ in operand) if isinstance(operand, tuple) else next(left)
            for operand in self.node.operands
        ]
        return run_node(self.node, values, {}, torch.device("cpu"))


def given_call(target: str, op: torch._ops.OpOverload, example: Sequence[Any] | Mapping[str, Any]) -> Call:
    """The call ``op(*example)`` or ``op(**example)``. Raises UsageError for arguments that it does not take."""
    arguments = op._schema.arguments
    positional, named = ((), dict(example)) if isinstance(example, Mapping) else (tuple(example), {})
    if len(positional) > len(arguments):
        raise UsageError(f"{target} takes {len(arguments)} arguments, the example has {len(positional)}")
    for argument, value in zip(arguments, positional, strict=False):
        named[argument.name] = value
    operands: list[Operand] = []
    attrs: dict[str, Attr] = {}
    tensors: list[Tensor | None] = []
    for argument in arguments:
        if argument.name not in named and not argument.has_default_value():
            raise UsageError(f"{target} needs an argument {argument.name!r}; give it in example=")
        value = named.pop(argument.name, argument.default_value)
        if "Tensor" not in str(argument.type):
            if value is not None and value != argument.default_value:
                attrs[argument.name] = _attr(target, argument.name, value)
            continue
        several = isinstance(value, (list, tuple))
        items = list(value) if several else [value if isinstance(value, Tensor) else None]
        if value is not None and not several and not isinstance(value, Tensor):
            attrs[argument.name] = _attr(target, argument.name, value)
        names = tuple(None if item is None else f"x{len(tensors) + at}" for at, item in enumerate(items))
        operands.append(names if several else names[0])
        tensors += items
    if named:
        raise UsageError(f"{target} takes no argument {next(iter(named))!r}; its schema is {op._schema}")
    while operands and operands[-1] is None:
        operands.pop()
        tensors.pop()
    node = Node(results=(Value("y", TensorType("f32", ())),), target=target, operands=tuple(operands),
                attrs=sorted_attrs(attrs))  # fmt: skip
    return Call(node=node, tensors=tuple(tensors))


def drawn_call(row: Row, op: torch._ops.OpOverload) -> Call:
    """A call with random float64 operands, a size for each factor of the rule's text."""
    sizes: dict[str, int] = {}
    pool = itertools.cycle(SIZES)
    generator = torch.Generator().manual_seed(0)

    def shape_of(tokens: tuple[str, ...]) -> tuple[int, ...]:
        shape: list[int] = []
        for token in tokens:
            extent = 1
            for word in token.strip("()").split():
                name = word.lstrip("!")
                count = LEADING_DIMS if name.startswith("*") else 1
                for at in range(count):
                    key = f"{name}{at}" if count > 1 else name
                    if name != "1" and key not in sizes:
                        sizes[key] = next(pool)
                    extent *= sizes.get(key, 1)
                    if count > 1:
                        shape.append(sizes[key])
            shape += [] if "*" in token else [extent]
        return tuple(shape)

    drawn = [
        torch.randn(shape_of(tokens), generator=generator, dtype=torch.float64) for tokens in parse(row).operands
    ]
    takes = [argument.name for argument in op._schema.arguments if "Tensor" in str(argument.type)]
    return given_call(row.target, op, dict(zip(takes, drawn, strict=False)))


def result_types(results: Sequence[Tensor]) -> tuple[Value, ...]:
    return tuple(
        Value(f"y{at}", TensorType(IR_DTYPES[result.dtype], tuple(result.shape))) for at, result in enumerate(results)
    )


def _attr(target: str, name: str, value: Any) -> Attr:
    if isinstance(value, torch.dtype):
        return IR_DTYPES[value]
    if isinstance(value, (list, tuple)):
        return tuple(_attr(target, name, item) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UsageError(f"argument {name} of {target} is a {type(value).__name__}; a rule is tried on plain values only")

"""From a node of the IR to a call of torch: which function, with which arguments.

``bind`` is structural: the operand values may be tensors, or the nodes of an fx graph that is being built.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autopar.ir.errors import IRError
from autopar.ir.graph import Node
from autopar.ir.program import MICROBATCH_AXIS
from autopar.runtime import autopar_ops, draws
from autopar.runtime.dtypes import TORCH_DTYPES

FUNCTIONS = {**autopar_ops.FUNCTIONS, **draws.FUNCTIONS}
TENSOR_TYPES = (
    "Tensor",
    "Optional[Tensor]",
    "List[Tensor]",
    "List[Optional[Tensor]]",
    "Optional[List[Tensor]]",
)
MEMORY_FORMATS = {
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last,
}


def resolve(
    node: Node, coordinate: Mapping[str, int], device: torch.device
) -> Callable[..., tuple[Any, ...]]:
    """A function of the operand values, in order, that returns the node's results as a tuple."""
    places = [None if operand is None else _Place(index) for index, operand in enumerate(node.operands)]
    function, args, given = bind(node, places, coordinate, device)
    positions = [(at, value.index) for at, value in enumerate(args) if isinstance(value, _Place)]
    named = {key: value.index for key, value in given.items() if isinstance(value, _Place)}
    kwargs = {key: value for key, value in given.items() if key not in named}

    def call(*values: Any) -> tuple[Any, ...]:
        filled = list(args)
        for at, index in positions:
            filled[at] = values[index]
        result = function(*filled, **kwargs, **{key: values[index] for key, index in named.items()})
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    return call


def run_node(
    node: Node, operand_values: Sequence[Any], coordinate: Mapping[str, int], device: torch.device
) -> tuple[Any, ...]:
    """Results of one operation on local tensors. A tuple operand is a sequence of tensors or None."""
    return resolve(node, coordinate, device)(*operand_values)


def bind(
    node: Node, values: Sequence[Any], coordinate: Mapping[str, int], device: torch.device
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The callable of ``node`` with its arguments, operands replaced by ``values``.

    Tensor arguments are filled from the operands in schema order; one that is absent and has an attribute
    of its name takes that Python scalar. Raises IRError for an unknown operation or attribute.
    """
    namespace, _, name = node.target.partition(".")
    if namespace == "autopar":
        return _bind_own(node, name, values, coordinate, device)
    packet, _, overload = name.partition(".")
    try:
        function = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except (AttributeError, RuntimeError):
        raise IRError(f"{node.results[0].name} = {node.target}: torch has no such operation") from None
    attrs = {key: _attribute(key, value, coordinate) for key, value in node.attrs}
    if overload == "Tensor" and "other" in attrs:  # comparisons refuse a number where they expect a tensor
        function = getattr(getattr(getattr(torch.ops, namespace), packet), "Scalar", function)
    left = list(values)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    given_up_to = 0
    for argument in function._schema.arguments:
        value, given = argument.default_value, True
        if str(argument.type) in TENSOR_TYPES and left:
            value = left.pop(0)
            value = list(value) if isinstance(value, tuple) else value
            if value is None:
                value = attrs.pop(argument.name, None)
        elif argument.name == "device":
            attrs.pop("device", None)
            value, given = device, not values
        elif argument.name in attrs:
            value = attrs.pop(argument.name)
        else:
            given = False
        if argument.kwarg_only:
            if given:
                kwargs[argument.name] = value
            continue
        args.append(value)
        given_up_to = len(args) if given or not argument.has_default_value() else given_up_to
    left = [value for value in left if value is not None]
    if attrs or left:
        unused = ", ".join(sorted(attrs)) or f"{len(left)} operands"
        raise IRError(f"{node.results[0].name} = {node.target}: the operation takes no {unused}")
    return function, tuple(args[:given_up_to]), kwargs


def _bind_own(
    node: Node, name: str, values: Sequence[Any], coordinate: Mapping[str, int], device: torch.device
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    function = FUNCTIONS.get(name)
    if function is None:
        raise IRError(f"{node.results[0].name} = {node.target}: autopar has no such operation")
    kwargs = {key: _attribute(key, value, coordinate) for key, value in node.attrs}
    parameters = inspect.signature(function).parameters
    if "dtype" in parameters:
        kwargs.setdefault("dtype", TORCH_DTYPES[node.results[0].type.dtype])
    if "device" in parameters:
        kwargs["device"] = device
    return function, tuple(values), kwargs


def _attribute(name: str, value: Any, coordinate: Mapping[str, int]) -> Any:
    """An attribute as torch takes it: element types, memory formats, and this device's ``start`` and ``index``."""
    if isinstance(value, str):
        if name == "dtype" or name.endswith("_dtype"):
            return TORCH_DTYPES[value]
        return MEMORY_FORMATS[value] if name == "memory_format" else value
    if name == "start" and isinstance(value, tuple):
        unknown = [axis for axis, _ in value if axis not in coordinate]
        if unknown:
            raise IRError(f"start depends on axis {unknown[0]!r}, which has no fixed position on a device")
        return sum(coordinate[axis] * stride for axis, stride in value)
    if name == "index" and isinstance(value, tuple):
        return tuple(tuple((size, _place(axis, coordinate)) for size, axis in dim) for dim in value)
    return list(value) if isinstance(value, tuple) else value


def _place(axis: str | None, coordinate: Mapping[str, int]) -> int | str | None:
    """This device's place in a factor of an ``index``. The microbatch is known only when it runs."""
    return axis if axis is None or axis == MICROBATCH_AXIS else coordinate[axis]


class _Place:
    """Stands for operand ``index`` until there is a value."""

    def __init__(self, index: int) -> None:
        self.index = index

"""Run a graph by plain torch, one operation after the other: the second opinion of these tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from autopar.ir.graph import ASSIGN, Graph, Node, assigned
from autopar.passes.trace import Traced

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8,
    "bool": torch.bool, "c128": torch.complex128, "c64": torch.complex64,
}  # fmt: skip
_DTYPE_KEYS = ("dtype",)


def run(
    graph: Graph, sources: Mapping[str, torch.Tensor], written: dict[str, torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """The outputs of ``graph``; ``sources`` holds inputs, parameters, buffers and constants by name.

    Every result is checked against the type that the graph gives it. ``written`` learns the new values of
    the buffers that the graph changes.
    """
    env: dict[str, Any] = {}
    stored = graph.producers()
    for node in graph.nodes:
        if node.target == ASSIGN and written is not None:
            written.update((str(stored[buffer].attr("fqn")), env[new]) for buffer, new in assigned(node))
        if node.target in ("input", "param", "buffer", "constant"):
            results = [sources[str(node.attr("name") or node.attr("fqn"))]]
        else:
            made = call(node, env)
            results = list(made) if isinstance(made, (list, tuple)) else [made]
        for value, result in zip(node.results, results, strict=True):
            assert tuple(result.shape) == value.type.shape, f"{node}: {tuple(result.shape)}"
            assert result.dtype == DTYPES[value.type.dtype], f"{node}: {result.dtype}"
            env[value.name] = result
    return [env[name] for name in graph.outputs]


def call(node: Node, env: Mapping[str, Any]) -> Any:
    operands: list[Any] = []
    for operand in node.operands:
        if isinstance(operand, tuple):
            operands.append([None if name is None else env[name] for name in operand])
        else:
            operands.append(None if operand is None else env[operand])
    attrs = {name: DTYPES[str(value)] if name in _DTYPE_KEYS else value for name, value in node.attrs}
    namespace, name, *overload = node.target.split(".")
    if namespace == "autopar":
        return OURS[name](*operands, **attrs)
    packet = getattr(getattr(torch.ops, namespace), name)
    op = getattr(packet, overload[0])
    rest = iter(operands)
    given: dict[str, Any] = {}
    numbers = False
    for argument in op._schema.arguments:
        if "Tensor" in str(argument.type):
            tensor = next(rest, None)
            if tensor is None and argument.name in attrs:
                tensor, numbers = attrs[argument.name], True
            if tensor is not None or not argument.has_default_value():
                given[argument.name] = tensor
        elif argument.name in attrs:
            given[argument.name] = attrs[argument.name]
    if numbers:  # a number where the schema has a tensor: torch chooses the overload
        named = {argument.name for argument in op._schema.arguments if argument.kwarg_only} & given.keys()
        return packet(*(given[key] for key in given if key not in named), **{key: given[key] for key in sorted(named)})
    return op(**given)


def cross_entropy_rows(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The loss of every row, classes last; the target is an index or a row of probabilities."""
    if dtype is not None:
        logits, weight = logits.to(dtype), None if weight is None else weight.to(dtype)
    dims = (0, logits.dim() - 1, *range(1, logits.dim() - 1)) if logits.dim() > 2 else tuple(range(logits.dim()))
    if target.is_floating_point():
        target = target.to(logits.dtype).permute(dims)
    return F.cross_entropy(
        logits.permute(dims), target, weight, ignore_index=ignore_index, label_smoothing=label_smoothing,
        reduction="none",
    )  # fmt: skip


def cross_entropy(*operands: torch.Tensor, **attrs: Any) -> torch.Tensor:
    return cross_entropy_rows(*operands, **attrs).sum()


def count_targets(
    target: torch.Tensor, weight: torch.Tensor | None = None, *, ignore_index: int, dtype: torch.dtype
) -> torch.Tensor:
    valid = target != ignore_index
    if weight is None:
        return valid.sum().to(dtype)
    return (weight[target.where(valid, 0)] * valid).sum().to(dtype)


def pick(x: torch.Tensor, index: torch.Tensor, *, lead: int) -> torch.Tensor:
    """The elements of each row in turn."""
    if lead == 0:
        return x[index]
    return torch.stack([pick(row, of_row, lead=lead - 1) for row, of_row in zip(x, index, strict=True)])


def batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    *,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """In training, and the running statistics that follow."""
    mean, variance = mean.clone(), variance.clone()
    return F.batch_norm(x, mean, variance, weight, bias, True, momentum, eps), mean, variance


OURS: dict[str, Any] = {
    "cross_entropy": cross_entropy,
    "cross_entropy_rows": cross_entropy_rows,
    "soft_cross_entropy_rows": cross_entropy_rows,
    "count_targets": count_targets,
    "as_complex": lambda x: torch.view_as_complex(x.contiguous()),
    "detach": torch.Tensor.detach,
    "pick": pick,
    "batch_norm": batch_norm,
    "assign": lambda value, buffers, news: value,
}


def sources_of(model: nn.Module, traced: Traced, tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the graph reads: fresh leaves for parameters, copies of buffers, constants and inputs."""
    state: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        state[name] = parameter.detach().clone().requires_grad_(parameter.requires_grad)
    for name, buffer in model.named_buffers():
        state[name] = buffer.detach().clone()
    return {**state, **traced.constants, **dict(zip(traced.input_names, tensors, strict=True))}

"""``register_rule``: how an operation that autopar does not know may be split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autopar.ir.derive import DERIVATIONS
from autopar.ir.errors import UsageError
from autopar.ir.optable import TABLE
from autopar.ir.registry import check_row, parse, register
from autopar.ir.rules import ALL, Row
from autopar.runtime.rule_check import check_rule


def register_rule(
    target: str | torch._ops.OpOverload, spec: str, *, partial: str = "", flops: str = "", backward: float = 2.0,
    saves: Sequence[int | str] = (ALL,), op_class: str = "pointwise", reduce: str = "sum",
    contiguous: Sequence[str] = (), check: bool = False, example: Sequence[Any] | Mapping[str, Any] | None = None,
    override: bool = False,
) -> None:  # fmt: skip
    """Say how the torch operation ``target``, such as ``"mylib.attend.default"``, may be split over devices.

    ``spec`` names each dim of each tensor operand and result, as an einsum does: ``"*b k, n k -> *b n"``.
    Dims of one name are split together; a name that is missing from the result is summed over. ``*b`` is any
    number of leading dims, ``!k`` must be whole on one device, ``(g h)`` is one dim of two factors, ``1`` a dim
    of size one. ``"replicated"`` splits nothing.

    ``partial``: operands that may be summands of their sum, so that the result is one: ``"0|1"`` either,
    ``"0+1"`` both together. ``flops``: what the forward pass computes, as factors that multiply: ``"2 *b k n"``;
    ``backward``: the backward pass relative to it; ``saves``: operands (and ``"r"``, the result) that autograd
    keeps, all unless said. ``contiguous``: factors that are never split in strides.

    With ``check`` the rule is tried on numbers, forward and backward, on ``example`` (the arguments of a call, a
    tuple or a dict), or on random floats that fit ``spec``; a rule that is wrong raises RuleError with the factor.
    A wrong rule that is not tried gives wrong results.

    Call it alike on every process, before planning. Raises UsageError, quoting ``spec``, for one that cannot be
    right, and for an operation that autopar has a rule for unless ``override``.
    """
    row = Row(
        target=str(target).replace("::", "."), spec=spec, partial=partial, flops=flops, backward=backward,
        saves=tuple(saves), op_class=op_class, reduce=reduce, contiguous=tuple(contiguous),
    )  # fmt: skip
    check_row(row)
    op = _operation(row.target)
    _check_operands(row, op)
    if check:
        check_rule(row, op, example)
    elif example is not None:
        raise UsageError("register_rule: example= is what check=True tries the rule on; pass both")
    register(row, builtin=TABLE.keys(), override=override)


def _operation(target: str) -> torch._ops.OpOverload:
    namespace, _, name = target.partition(".")
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops, namespace), packet, None) if packet else None
    if found is None:
        raise UsageError(
            f"torch has no operation {target!r}; it is namespace.name.overload, such as 'aten.linear.default', and the "
            "module that registers it must be imported first"
        )
    if overload not in found.overloads():
        raise UsageError(f"{target!r} names no overload; {namespace}.{packet} has {', '.join(found.overloads())}")
    op = getattr(found, overload)
    assert isinstance(op, torch._ops.OpOverload)
    return op


def _check_operands(row: Row, op: torch._ops.OpOverload) -> None:
    """Raise UsageError where the rule has more operands or results than the operation, or too few."""
    if row.spec in DERIVATIONS:
        return
    text = parse(row)
    kinds = [(str(a.type), a.has_default_value()) for a in op._schema.arguments if "Tensor" in str(a.type)]
    lists = any("List" in kind for kind, _ in kinds)
    needed = sum(not optional and "Optional" not in kind for kind, optional in kinds)
    if not lists and not needed <= len(text.operands) <= len(kinds):
        raise UsageError(
            f"rule {row.spec!r} for {row.target} has {len(text.operands)} operands, the operation "
            f"takes {len(kinds)} tensors: {op._schema}"
        )
    returns = [str(value.type) for value in op._schema.returns]
    if not any("List" in kind for kind in returns) and len(text.results) != len(returns):
        raise UsageError(
            f"rule {row.spec!r} for {row.target} has {len(text.results)} results, the operation gives "
            f"{len(returns)}: {op._schema}"
        )

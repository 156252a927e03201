"""A backward that is linear in the gradient, turned round: of ``x`` what has, as its gradient, what the backward says.

A backward B takes the gradient of the result to that of an operand. Each operation in it that takes the gradient has a
transposed one, so L, the same operations transposed and in the other order, takes the operand to the shape of the
result, and the gradient of L(x) is B. What in a backward does not depend on the gradient is computed as it stands.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from autopar.passes.trace.slopes import FACTORIES, NotSlopedError

# Of an operation's node and what comes back to its result: for each operand that depends on the gradient, what goes on.
Transposed: TypeAlias = "Callable[[_Node, Tensor], Sequence[tuple[int, Tensor]]]"


def read_backward(backward: Callable[..., Any], like: Sequence[Tensor]) -> Graph:
    """The operations of ``backward(gradient, *held)`` for tensors as ``like``, in a thread without a trace's modes.

    Raises NotSlopedError where it cannot be followed.
    """
    kinds = [(tuple(each.shape), each.dtype, each.device) for each in like]
    found: list[Any] = []

    def read() -> None:
        try:
            with FakeTensorMode():
                given = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in kinds]
                pure = torch.func.functionalize(lambda *args: backward(*args))
                found.append(make_fx(lambda *args: pure(*args))(*given).graph)
        except BaseException as error:  # noqa: BLE001 - told in the thread that asked
            found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    if isinstance(found[0], Graph):
        return found[0]
    raise NotSlopedError(f"it cannot be followed: {type(found[0]).__name__}: {found[0]}")


def turned(
    graph: Graph, value: Tensor, held: Sequence[Tensor], operands: Sequence[Any]
) -> Iterator[tuple[int, Tensor]]:
    """By operand that has a gradient, L of it.

    ``graph``: of ``read_backward``; ``value``: the result; ``held``: what is given beside the gradient. Raises
    NotSlopedError.
    """
    gradient, *others = [node for node in graph.nodes if node.op == "placeholder"]
    values: dict[Node, Any] = dict(zip(others, held, strict=True))
    linear = {gradient: gradient}
    (end,) = (node for node in graph.nodes if node.op == "output")
    for node in graph.nodes:
        if node.op not in ("call_function", "placeholder", "output"):
            raise NotSlopedError("it holds tensors of its own")
        if node.op != "call_function":
            continue
        takes = [each for each in node.all_input_nodes if each in linear]
        if takes and _name(node) not in FACTORIES:
            rounds = node.kwargs.get("rounding_mode") or not node.meta["val"].is_floating_point()
            if rounds or _name(node) not in _TRANSPOSED:
                raise NotSlopedError(f"it gives the gradient to {_name(node)}")
            linear[node] = node
        else:
            # of the gradient's shape, whatever its numbers
            values.update(
                (each, value.new_zeros(each.meta["val"].shape, dtype=each.meta["val"].dtype)) for each in takes
            )
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.get)
            values[node] = node.target(*args, **kwargs)
    results = end.args[0] if isinstance(end.args[0], tuple | list) else [end.args[0]]
    for at, result in enumerate(results):
        if result is None:
            continue
        x = operands[at]
        if result not in linear or not isinstance(x, Tensor) or result.meta["val"].shape != x.shape:
            raise NotSlopedError("a gradient that it returns does not come from the one that comes in alone")
        yield at, _back(gradient, result, [*linear], values, x)


def _back(gradient: Node, result: Node, linear: Sequence[Node], values: dict[Node, Any], x: Tensor) -> Tensor:
    """``linear``: in order, the gradient first."""
    coming: dict[Node, Tensor] = {result: x}
    for node in reversed(linear):
        if node not in coming or node is gradient:
            continue
        known = _Node(node, set(linear), values)
        for at, part in _TRANSPOSED[_name(node)](known, coming.pop(node)):
            operand = node.args[at]
            assert isinstance(operand, Node)
            part = part.to(operand.meta["val"].dtype)
            coming[operand] = coming[operand] + part if operand in coming else part
    if gradient not in coming:
        raise NotSlopedError("a gradient that it returns does not depend on the one that comes in")
    return coming[gradient]


def _name(node: Node) -> str:
    if node.target is operator.getitem:
        return "getitem"
    return str(node.target._schema.name).partition("::")[2]  # type: ignore[union-attr]


class _Node:
    """An operation that takes what depends on the gradient. ``takes``: which of its operands do."""

    def __init__(self, node: Node, linear: set[Node], values: dict[Node, Any]) -> None:
        self.node, self.values = node, values
        self.takes = [at for at, each in enumerate(node.args) if isinstance(each, Node) and each in linear]
        inside = [each for each in node.all_input_nodes if each in linear]
        if len(inside) != len({node.args[at] for at in self.takes}):
            raise NotSlopedError(f"it gives the gradient to {_name(node)}")

    def value(self, at: int) -> Any:
        """An operand that does not depend on the gradient; None where it is left out."""
        given = self.node.args[at] if at < len(self.node.args) else None
        return torch.fx.node.map_arg(given, self.values.get)

    def size(self, at: int) -> Sequence[int]:
        operand = self.node.args[at]
        assert isinstance(operand, Node)
        return tuple(operand.meta["val"].shape)

    def only(self, *, at: int = 0) -> None:
        """Raise NotSlopedError where another operand than this one depends on the gradient."""
        if self.takes != [at]:
            raise NotSlopedError(f"it gives the gradient to {_name(self.node)}")


def _to(x: Tensor, size: Sequence[int]) -> Tensor:
    """Summed over what was repeated."""
    if x.dim() > len(size):
        x = x.sum(list(range(x.dim() - len(size))))
    dims = [dim for dim, extent in enumerate(size) if extent == 1 and x.shape[dim] != 1]
    return x.sum(dims, keepdim=True) if dims else x


def _mul(node: _Node, x: Tensor) -> list[tuple[int, Tensor]]:
    (at,) = node.takes if len(node.takes) == 1 else (-1,)
    node.only(at=at)
    return [(at, _to(x * node.value(1 - at), node.size(at)))]


def _div(node: _Node, x: Tensor) -> list[tuple[int, Tensor]]:
    node.only()
    return [(0, _to(x / node.value(1), node.size(0)))]


def _add(sign: int) -> Transposed:
    def transposed(node: _Node, x: Tensor) -> list[tuple[int, Tensor]]:
        factor: Any = node.node.kwargs.get("alpha", 1)
        if len(node.takes) != 2 and not _is_zero(node.node.args[1 - node.takes[0]]):
            raise NotSlopedError(f"it gives the gradient to {_name(node.node)}")
        return [(at, _to(x * (sign * factor) if at else x, node.size(at))) for at in node.takes]

    return transposed


def _is_zero(given: Any) -> bool:
    """By how it is made, whatever the numbers."""
    if not isinstance(given, Node):
        return isinstance(given, int | float) and given == 0
    name = _name(given) if given.op == "call_function" else ""
    filled = name in ("full", "full_like", "new_full", "scalar_tensor") and given.args[min(1, len(given.args) - 1)] == 0
    return bool(filled) or "zeros" in name


def _sum(node: _Node, x: Tensor) -> list[tuple[int, Tensor]]:
    node.only()
    size = node.size(0)
    dims = node.value(1) or range(len(size))
    kept = [1 if at in {dim % len(size) for dim in dims} else extent for at, extent in enumerate(size)] if size else []
    part = x.reshape(kept).expand(size)
    if _name(node.node) == "mean":
        part = part / (part.numel() // max(1, x.numel()))
    return [(0, part)]


def _where(node: _Node, x: Tensor) -> list[tuple[int, Tensor]]:
    for at in (1, 2):
        if at not in node.takes and not _is_zero(node.node.args[at]):
            raise NotSlopedError("it gives the gradient to where")
    mask = node.value(0)
    sides = {1: lambda: torch.where(mask, x, 0), 2: lambda: torch.where(mask, 0, x)}
    return [(at, _to(sides[at](), node.size(at))) for at in node.takes]


def _masked_fill(node: _Node, x: Tensor) -> list[tuple[int, Tensor]]:
    node.only()
    if not _is_zero(node.node.args[2]):
        raise NotSlopedError("it gives the gradient to masked_fill")
    return [(0, _to(x.masked_fill(node.value(1), 0), node.size(0)))]


def _scatter_add(node: _Node, x: Tensor) -> list[tuple[int, Tensor]]:
    dim, index = node.value(1), node.value(2)
    if not {0, 3} >= set(node.takes) or (3 in node.takes and node.size(3) != tuple(index.shape)):
        raise NotSlopedError("it gives the gradient to scatter_add")
    if 0 not in node.takes and not _is_zero(node.node.args[0]):
        raise NotSlopedError("it gives the gradient to scatter_add")
    return [(at, x.gather(dim, index) if at == 3 else x) for at in node.takes]


def _gather(node: _Node, x: Tensor) -> list[tuple[int, Tensor]]:
    node.only()
    zeros = x.new_zeros(node.size(0))
    return [(0, zeros.scatter_add(node.value(1), node.value(2), x))]


def _product(node: _Node, x: Tensor) -> list[tuple[int, Tensor]]:
    (at,) = node.takes if len(node.takes) == 1 else (-1,)
    node.only(at=at)
    other = node.value(1 - at).mT
    return [(at, other @ x if at else x @ other)]


def _alone(back: Callable[[_Node, Tensor], Tensor]) -> Transposed:
    """Of an operation that takes the gradient first, and nowhere else."""

    def transposed(node: _Node, x: Tensor) -> list[tuple[int, Tensor]]:
        node.only()
        return [(0, back(node, x))]

    return transposed


def _order(node: _Node) -> list[int]:
    dims = [dim % len(node.size(0)) for dim in node.value(1)]
    return sorted(range(len(dims)), key=dims.__getitem__)


_SAME = _alone(lambda node, x: x)
_RESHAPED = _alone(lambda node, x: x.reshape(node.size(0)))
_TRANSPOSED: dict[str, Transposed] = {
    **dict.fromkeys(("clone", "alias", "detach", "_to_copy", "positive"), _SAME),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze"), _RESHAPED),
    "neg": _alone(lambda node, x: -x),
    "mul": _mul,
    "div": _div,
    "add": _add(1),
    "sub": _add(-1),
    "expand": _alone(lambda node, x: _to(x, node.size(0))),
    "sum": _sum,
    "mean": _sum,
    "t": _alone(lambda node, x: x.t()),
    "transpose": _alone(lambda node, x: x.transpose(node.value(1), node.value(2))),
    "permute": _alone(lambda node, x: x.permute(_order(node))),
    "flip": _alone(lambda node, x: x.flip(node.value(1))),
    "where": _where,
    "masked_fill": _masked_fill,
    "scatter_add": _scatter_add,
    "gather": _gather,
    "mm": _product,
    "bmm": _product,
}
"""By the name of an operation."""

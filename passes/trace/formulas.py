"""Gates of experts that are no named one, read off their operations: ``ir/formulas.py`` says what they become.

A gate is traced on half precision, which nothing else is in, so that what it computes in is told from the element type
that it is given. Its gradient is traced of what was read, on one column of each. Both are run on numbers and compared
with the module's own before anyone relies on them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from autopar.ir.formulas import CAST, Call, Formula, Steps, literal
from autopar.ir.gates import Array

_OWN = torch.float16
_COLUMNS = 4
_SAME = ("detach", "alias", "clone", "lift_fresh")
# Element-wise though torch does not mark them so. Gradients are named after what they are of.
_UNMARKED = ("hardswish", "scalar_tensor", "full_like", "zeros_like", "ones_like")
# How a tensor is made, not what it holds.
_MADE = ("layout", "device", "pin_memory", "memory_format")

# The name of a value, or what gives it for the columns of a name: until they are taken apart, all are treated alike.
Entry: TypeAlias = str | Callable[[str], str]


class NoFormulaError(Exception):
    """It does something else than compute element by element."""


def formula_of(gate: Callable[[Tensor], Tensor], x: Tensor, *, glu: bool) -> Formula | None:
    """What ``gate`` computes of columns, two for each that comes out if ``glu``; None where no formula says it.

    ``x``: numbers in float64 on which the formula gives the same values and gradients, as far as their digits go.
    """
    try:
        value, pairs = _value(gate, glu)
        formula = Formula(value=value, gradient=_gradient(value, glu), glu=glu, pairs=pairs)
        good = _agree(formula, gate, x)
    except Exception:  # noqa: BLE001 - a function of the user's, on numbers that it was not made for
        return None
    return formula if good else None


def _value(gate: Callable[[Tensor], Tensor], glu: bool) -> tuple[Steps, bool]:
    """And whether the columns that make one stand side by side."""
    pure = torch.func.functionalize(gate)
    # not ``pure`` itself: of a method fx would count an argument too many
    traced = make_fx(lambda x: pure(x), tracing_mode="fake")(torch.ones(2, 2 * _COLUMNS, dtype=_OWN))
    read = _Reading()
    (made,) = read.of(traced.graph, [lambda column: column])
    if len(read.ways) != glu or callable(made) == glu:
        raise NoFormulaError("it does not take columns apart as gates do")
    return Steps(results=(made("x") if callable(made) else made,), calls=tuple(read.calls)), "pairs" in read.ways


def _gradient(value: Steps, glu: bool) -> Steps:
    names = ["g", "u"] if glu else ["x"]

    def backward(*given: Tensor) -> tuple[Tensor, ...]:
        *columns, grad = given
        leaves = [each.detach().requires_grad_() for each in columns]
        (made,) = value.run(dict(zip(names, leaves, strict=True)), torch.ops.aten, _cast(_OWN))
        return torch.autograd.grad(made, leaves, grad, allow_unused=True, materialize_grads=True)

    ones = [torch.ones(2, _COLUMNS, dtype=_OWN) for _ in (*names, "d")]
    traced = make_fx(backward, tracing_mode="fake")(*ones)
    read = _Reading()
    return Steps(results=tuple(read.of(traced.graph, [*names, "d"])), calls=tuple(read.calls))


def _agree(formula: Formula, gate: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    leaf = x.clone().requires_grad_()
    seen = gate(leaf)
    grad = torch.linspace(-2, 3, seen.numel(), dtype=x.dtype).reshape(seen.shape)
    (wanted,) = torch.autograd.grad(seen, leaf, grad)
    cast, aten = _cast(x.dtype), torch.ops.aten
    with torch.no_grad():
        (made,) = formula.value.run(formula.named(x), aten, cast)
        found = formula.gradient.run({**formula.named(x), "d": grad}, aten, cast)
    parts: Sequence[Array] = formula.parts(wanted) if formula.glu else (wanted,)
    pairs = zip((made, *found), (seen, *parts), strict=True)
    narrow = any(call.operation == CAST for call in formula.value.calls)
    near = {"rtol": 1e-5, "atol": 1e-6} if narrow else {"rtol": 1e-12, "atol": 1e-12}
    return all(one.shape == other.shape and torch.allclose(one, other, **near, equal_nan=True) for one, other in pairs)


def _cast(own: torch.dtype) -> Callable[[Tensor, str], Tensor]:
    return lambda x, name: x.to(own if name == "own" else getattr(torch, name), copy=True)


class _Reading:
    """The calls of a traced graph. ``ways``: in which columns are taken apart, "halves" or "pairs"."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.ways: set[str] = set()
        self.known: dict[Node, Any] = {}

    def of(self, graph: Graph, given: Sequence[Entry]) -> list[Any]:
        """What comes of the graph. ``given``: its arguments."""
        arguments, self.given = iter(given), given
        for node in graph.nodes:
            if node.op == "placeholder":
                self.known[node] = next(arguments)
            elif node.op == "call_function":
                self.known[node] = self._made(node)
            elif node.op == "output":
                results = node.args[0] if isinstance(node.args[0], tuple | list) else [node.args[0]]
                return [self.known[each] for each in results]
            else:
                raise NoFormulaError("it holds tensors of its own")
        raise NoFormulaError("it gives nothing")

    def _made(self, node: Node) -> Any:
        if node.target is operator.getitem:
            return self.known[node.args[0]][node.args[1]]  # type: ignore[index]
        assert isinstance(node.target, torch._ops.OpOverload)
        base, overload = node.target._schema.name.partition("::")[2], node.target._overloadname
        source: Any = self.known.get(node.args[0]) if isinstance(node.args[0], Node) else None
        if base in _SAME:
            return source
        if base in ("split", "split_with_sizes", "slice"):
            return self._apart(source, base, node.args[1:])
        if base == "_to_copy":
            name = "own" if node.kwargs["dtype"] == _OWN else str(node.kwargs["dtype"]).removeprefix("torch.")
            return self._call(CAST, [source, _literal(name)], ())
        marked = torch.Tag.pointwise in node.target.tags or base in _UNMARKED or base.endswith("_backward")
        if not marked or (base.endswith("_") and source in self.given):
            raise NoFormulaError(f"{base} does not compute element by element")
        args = [self.known[each] if isinstance(each, Node) else _literal(each) for each in node.args]
        dtype = node.args[0].meta["val"].dtype if isinstance(node.args[0], Node) else node.kwargs.get("dtype")
        options = [
            (key, _literal(each)) for key, each in node.kwargs.items()
            if key not in _MADE and not (key == "dtype" and each in (None, dtype))
        ]  # fmt: skip
        return self._call(f"{base}.{overload or 'default'}", args, options)

    def _call(self, operation: str, args: Sequence[Entry], options: Sequence[tuple[str, str]]) -> Entry:
        if any(map(callable, args)):
            return functools.cache(lambda column: self._calling(operation, args, options, column))
        return self._calling(operation, args, options, "")

    def _calling(
        self, operation: str, args: Sequence[Entry], options: Sequence[tuple[str, str]], column: str
    ) -> str:  # fmt: skip
        named = tuple(each(column) if callable(each) else each for each in args)
        if column and not all(callable(each) or isinstance(each, _Text) for each in args):
            raise NoFormulaError("it computes with columns and parts of them together")
        self.calls.append(Call(f"v{len(self.calls)}", operation, named, tuple(options)))
        return self.calls[-1].result

    def _apart(self, source: Entry, base: str, args: Sequence[Any]) -> Any:
        """Columns, taken apart; all of them where nothing is cut off."""
        if not callable(source):
            raise NoFormulaError("columns are taken apart twice")
        if base != "slice":
            size, dim = args[0], args[1] if len(args) > 1 else 0
            if size not in (_COLUMNS, [_COLUMNS, _COLUMNS]) or dim not in (-1, 1):
                raise NoFormulaError("columns are not taken apart in halves")
            self.ways.add("halves")
            return [source("g"), source("u")]
        dim, start, end, step = [*args, None, None, None, None][:4]
        whole = 2 * _COLUMNS if dim in (-1, 1) else 2
        first, last, step = slice(start, end, step).indices(whole)
        if (first, last, step) == (0, whole, 1):
            return source
        way = {(0, whole, 2): "pairs g", (1, whole, 2): "pairs u", (0, _COLUMNS, 1): "halves g",
               (_COLUMNS, whole, 1): "halves u"}.get((first, last, step), "")  # fmt: skip
        if not way or whole == 2:
            raise NoFormulaError("columns are not taken apart in two")
        kind, column = way.split()
        self.ways.add(kind)
        return source(column)


class _Text(str):
    """A number or the like, not the name of a value."""


def _literal(value: Any) -> _Text:
    if value is None or isinstance(value, bool | int | float | str):
        return _Text(literal(value))
    raise NoFormulaError(f"it is called with {value}")

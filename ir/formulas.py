"""Gates of experts that no name says: short programs of element-wise operations, and of their gradients.

    formula-glu pairs | a=mish.default(g);b=mul.Tensor(a,u);b | c=mul.Tensor(d,u);…;e;f

says what comes of the columns, then the gradient of each column. Names in them: ``x`` (all columns are alike) or ``g``
and ``u`` as in ``gates.py``, ``d`` the gradient of what comes. An operation is called as torch has it under
``torch.ops.aten``; ``cast(a,'float32')`` changes the element type, to that of the columns with ``'own'``.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autopar.ir.errors import IRError
from autopar.ir.gates import Array, Columns, Gate

CAST = "cast"
_OPERATION = re.compile(r"[a-z][a-z0-9_]*\.[A-Za-z_]+|cast")


@dataclass(frozen=True)
class Call:
    """``result = operation(*args, **options)``. An argument is a name, or the text of a number or a string."""

    result: str
    operation: str
    args: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        given = [*self.args, *(f"{key}={text}" for key, text in self.options)]
        return f"{self.result}={self.operation}({','.join(given)})"


@dataclass(frozen=True)
class Steps:
    """Calls in order, and the names of what comes of them."""

    calls: tuple[Call, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        return ";".join([*map(str, self.calls), *self.results])

    @classmethod
    @functools.cache
    def parse(cls, text: str) -> Steps:
        """Inverse of ``str``. Raises IRError for anything else."""
        try:
            lines = ast.parse(text).body
        except SyntaxError:
            raise IRError(f"{text!r} are no steps of a formula") from None
        calls = [_call(line) for line in lines if isinstance(line, ast.Assign)]
        results = [line.value.id for line in lines if isinstance(line, ast.Expr) and isinstance(line.value, ast.Name)]
        made = cls(tuple(calls), tuple(results))
        if not results or str(made) != text.strip():
            raise IRError(f"{text!r} are no steps of a formula, expected some such as 'a=relu.default(x);a'")
        return made

    def run(
        self, given: Mapping[str, Array], operations: Any, cast: Callable[[Array, str], Array]
    ) -> tuple[Array, ...]:
        """The results. ``operations``: what holds them by their names; ``cast``: to an element type by its name."""
        known = dict(given)
        for call in self.calls:
            args = [known[arg] if arg in known else ast.literal_eval(arg) for arg in call.args]
            options = {key: ast.literal_eval(text) for key, text in call.options}
            made = cast if call.operation == CAST else functools.reduce(getattr, call.operation.split("."), operations)
            known[call.result] = made(*args, **options)
        return tuple(known[name] for name in self.results)


def _call(line: ast.Assign) -> Call:
    target, value = line.targets[0], line.value
    if len(line.targets) > 1 or not (isinstance(target, ast.Name) and isinstance(value, ast.Call)):
        raise IRError(f"{ast.unparse(line)!r} is no step of a formula")
    operation = ast.unparse(value.func)
    if not _OPERATION.fullmatch(operation):
        raise IRError(f"{operation!r} is no operation of a formula")
    options = tuple((str(option.arg), _text(option.value)) for option in value.keywords)
    return Call(target.id, operation, tuple(map(_text, value.args)), options)


def _text(value: ast.expr) -> str:
    if isinstance(value, ast.Name):
        return value.id
    try:
        return literal(ast.literal_eval(value))
    except ValueError:
        raise IRError(f"{ast.unparse(value)!r} is no argument of a formula") from None


def literal(value: object) -> str:
    """Of a number, string, truth value or None: its text, which Python reads. Infinity is beyond all numbers."""
    return repr(value).replace("inf", "1e999") if isinstance(value, float) else repr(value)


@dataclass(frozen=True, kw_only=True)
class Formula(Columns):
    """``value`` gives what the second projection reads, ``gradient`` that of x, or those of g and u."""

    value: Steps
    gradient: Steps

    def __str__(self) -> str:
        kind = ("formula-glu pairs" if self.pairs else "formula-glu") if self.glu else "formula"
        return f"{kind} | {self.value} | {self.gradient}"

    def named(self, x: Array) -> dict[str, Array]:
        """The columns by their names."""
        return dict(zip("gu", self.parts(x), strict=True)) if self.glu else {"x": x}


def parse_gate(text: str) -> Gate | Formula:
    """Inverse of ``str`` for both. Raises IRError for what is no gate."""
    kind, *parts = text.split(" | ")
    if not kind.startswith("formula"):
        return Gate.parse(text)
    if kind not in ("formula", "formula-glu", "formula-glu pairs") or len(parts) != 2:
        raise IRError(f"{text!r} is no formula of experts, expected its kind, its value and its gradient")
    value, gradient = map(Steps.parse, parts)
    glu = kind != "formula"
    if len(value.results) != 1 or len(gradient.results) != 1 + glu:
        raise IRError(f"{text!r}: a formula gives one value and the gradient of each of its columns")
    return Formula(value=value, gradient=gradient, glu=glu, pairs=kind.endswith("pairs"))

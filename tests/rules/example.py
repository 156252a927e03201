"""What an example of a rule is: a call of an operation with operands to be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

from autopar.ir.types import Attr


@dataclass(frozen=True)
class Arg:
    """One tensor operand.

    kind: float, positive, part (between 0 and 1), above (1), fixed (a float without gradient), int (below
    ``high``), bool, complex (drawn as pairs, one dim more than ``shape``).
    """

    shape: tuple[int, ...]
    kind: str = "float"
    high: int = 2

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        if self.kind == "bool":
            return torch.rand(self.shape, generator=generator) < 0.6
        if self.kind == "int":
            return torch.randint(0, self.high, self.shape, generator=generator)
        shape = (*self.shape, 2) if self.kind == "complex" else self.shape
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        if self.kind == "part":
            return values.sigmoid()
        if self.kind == "above":
            return values.abs() + 1.5
        return values.abs() + 0.5 if self.kind == "positive" else values

    @property
    def trains(self) -> bool:
        return self.kind in ("float", "positive", "part", "above", "complex")


Operand: TypeAlias = "Arg | None | tuple[Arg | None, ...]"


@dataclass(frozen=True)
class Example:
    """A call: operands in schema order, all else in ``attrs``."""

    target: str
    operands: tuple[Operand, ...] = ()
    attrs: tuple[tuple[str, Attr], ...] = ()

    def __str__(self) -> str:
        shapes = [str(list(o.shape)) if isinstance(o, Arg) else "none" if o is None else "list" for o in self.operands]
        attrs = [f"{key}={value}" for key, value in self.attrs]
        return f"{self.target}({', '.join([*shapes, *attrs])})".replace(" ", "")


def f(*shape: int) -> Arg:
    return Arg(shape)


def positive(*shape: int) -> Arg:
    return Arg(shape, "positive")


def part(*shape: int) -> Arg:
    return Arg(shape, "part")


def above(*shape: int) -> Arg:
    return Arg(shape, "above")


def fixed(*shape: int) -> Arg:
    return Arg(shape, "fixed")


def pairs(*shape: int) -> Arg:
    return Arg(shape, "complex")


def ints(high: int, *shape: int) -> Arg:
    return Arg(shape, "int", high)


def bools(*shape: int) -> Arg:
    return Arg(shape, "bool")


def call(target: str, *operands: Operand, **attrs: Attr) -> Example:
    return Example(target, operands, tuple(sorted(attrs.items())))

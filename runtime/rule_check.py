"""Try a user's rule on numbers: the operation on parts, one device after the other, against the whole.

For each factor that the rule lets an axis take, and each set of operands that may be partial:

    operands --split as the rule says--> the operation on each device --joined as it says--> the whole results?
    a random gradient --split--> backward on each device --joined--> the whole gradients?

Splits are over 2 devices (3 where a size is odd), in contiguous parts and, where the rule does not rule it
out, in strides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from autopar.ir.errors import RuleError, UsageError
from autopar.ir.optable import node_rule
from autopar.ir.rules import Dim, NodeRule, Row
from autopar.runtime import local
from autopar.runtime.rule_example import Call, drawn_call, given_call, result_types

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 3e-2}


@dataclass(frozen=True)
class Split:
    """One thing the rule allows on ``parts`` devices: a factor at a stride, or a set of partial operands."""

    parts: int
    factor: str = ""
    outer: int = 1
    partial: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.partial:
            return f"operands {'+'.join(map(str, self.partial))} partial on {self.parts} devices"
        strided = f" at stride {self.outer}" if self.outer > 1 else ""
        return f"factor {self.factor} split over {self.parts} devices{strided}"


def check_rule(
    row: Row, op: torch._ops.OpOverload, example: Sequence[Any] | Mapping[str, Any] | None = None
) -> tuple[Split, ...]:
    """Every split that was tried. Raises RuleError naming the first that differs from the whole operation.

    ``example``: arguments as ``op`` takes them; without, random floats that fit the rule's text. Raises UsageError
    if the operation does not run on them, or the rule does not fit them.
    """
    if example is None and "->" not in row.spec:
        raise UsageError(f"rule {row.spec!r} for {row.target} names no dims: give example=, the arguments of a call")
    call = drawn_call(row, op) if example is None else given_call(row.target, op, example)
    trial = _Trial(row, call)
    splits = tuple(_splits(trial.rule))
    for split in splits:
        trial.check(split)
    return splits


def _splits(rule: NodeRule) -> Iterator[Split]:
    for factor in rule.choosable:
        size = rule.sizes[factor]
        parts = next(k for k in range(2, size + 1) if size % k == 0)
        yield Split(parts, factor)
        outer = next((o for o in range(2, size) if size % (o * parts) == 0), None)
        if outer is not None and factor not in rule.contiguous:
            yield Split(parts, factor, outer)
    for members in rule.partial:
        yield Split(2, partial=members)


class _Trial:
    """A rule, a call, and what the whole operation gives for it."""

    def __init__(self, row: Row, call: Call) -> None:
        self.row, self.call = row, call
        self.generator = torch.Generator().manual_seed(1)
        leaves = _leaves(call.tensors)
        try:
            results = call.run(leaves)
        except Exception as error:
            tried = ", ".join("none" if x is None else str(list(x.shape)) for x in call.tensors)
            raise UsageError(
                f"{row.target} does not run on the operands that its rule {row.spec!r} is tried on ({tried}): "
                f"{_first_line(error)}. Give example=, the arguments of a call that works"
            ) from error
        self.results = tuple(result.detach() for result in results)
        self.call = replace(call, node=replace(call.node, results=result_types(self.results)))
        shapes = [None if x is None else tuple(x.shape) for x in call.tensors]
        self.rule = node_rule(self.call.node, shapes, [tuple(x.shape) for x in self.results], given=row)
        small = [name for name, size in self.rule.sizes.items() if size == 1 and name not in self.rule.whole]
        if small:
            raise UsageError(f"rule {row.spec!r} for {row.target}: {small[0]} is 1 in the example, so nothing of it "
                             "can be split; give an example in which it is at least 2")  # fmt: skip
        learns = row.backward > 0 and row.reduce == "sum"
        self.upstream = [self._drawn(result) if learns and result.requires_grad else None for result in results]
        self.gradients = self._backward(leaves, results, self.upstream)

    def check(self, split: Split) -> None:
        rule, ranks = self.rule, range(split.parts)
        given = [
            [self._operand(x, at, split, rank) for at, x in enumerate(self.call.tensors)] for rank in ranks
        ]
        leaves = [_leaves(tensors) for tensors in given]
        try:
            found = [self.call.run(tensors) for tensors in leaves]
        except Exception as error:
            raise self._error(split, f"the operation fails on its part: {_first_line(error)}") from error
        for at, whole in enumerate(self.results):
            parts = [results[at].detach() for results in found]
            self._compare(split, self._joined(parts, rule.results[at], split, whole), whole, f"result {at}")
        gradients: list[list[Tensor | None]] = []
        for tensors, results in zip(leaves, found, strict=True):
            rank = len(gradients)
            upstream = [
                None if x is None else self._part(x, rule.results[at], split, rank)
                for at, x in enumerate(self.upstream)
            ]
            gradients.append(self._backward(tensors, results, upstream))
        for at, whole_gradient in enumerate(self.gradients):
            if whole_gradient is not None:
                of_ranks = [x for gradient in gradients if (x := gradient[at]) is not None]
                self._check_gradient(split, at, of_ranks, whole_gradient)

    def _check_gradient(self, split: Split, at: int, parts: list[Tensor], whole: Tensor) -> None:
        what = f"the gradient of operand {at}"
        if at in split.partial:  # a summand's gradient is that of the sum
            for part in parts:
                self._compare(split, part, whole, what)
        else:
            self._compare(split, self._joined(parts, self.rule.operands[at], split, whole), whole, what)

    def _operand(self, x: Tensor | None, at: int, split: Split, rank: int) -> Tensor | None:
        if x is None or not split.partial:
            return None if x is None else self._part(x, self.rule.operands[at], split, rank)
        if at not in split.partial:
            return x
        generator = torch.Generator().manual_seed(at + 2)  # alike on both devices
        summand = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
        return summand if rank == 0 else x - summand

    def _part(self, x: Tensor, dims: tuple[Dim, ...], split: Split, rank: int) -> Tensor:
        place = self._place(dims, split)
        return x if place is None else local.take(x, *place, split.parts, rank)

    def _joined(self, parts: list[Tensor], dims: tuple[Dim, ...], split: Split, whole: Tensor) -> Tensor:
        """The whole tensor from those of the devices; a part of the wrong shape is left for the comparison."""
        place = self._place(dims, split)
        if any(part.shape != parts[0].shape for part in parts):
            raise self._error(split, "the devices' parts differ in shape")
        if place is not None:
            return local.place(torch.stack(parts), *place) if parts[0].dim() == whole.dim() else parts[0]
        joined = torch.stack(parts)
        reduced = joined.amax(dim=0) if self.row.reduce == "max" else joined.sum(dim=0)
        return reduced.to(whole.dtype)

    def _place(self, dims: tuple[Dim, ...], split: Split) -> tuple[int, int] | None:
        place = self.rule.position(dims, split.factor) if split.factor else None
        return None if place is None else (place[0], place[1] * split.outer)

    def _drawn(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator, dtype=torch.float64).to(like)

    def _backward(
        self, leaves: Sequence[Tensor | None], results: Sequence[Tensor], upstream: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Gradients of the float operands; None of all others, and of all if nothing learns."""
        pairs = [(r, g) for r, g in zip(results, upstream, strict=True) if g is not None and r.requires_grad]
        if not pairs:
            return [None] * len(leaves)
        try:
            torch.autograd.backward([r for r, _ in pairs], [g.reshape(r.shape) for r, g in pairs])
        except Exception as error:
            raise UsageError(
                f"{self.row.target} has no gradient that can be tried: {_first_line(error)}. Register one, or pass "
                "backward=0 if none ever flows through it"
            ) from error
        return [None if leaf is None or not leaf.requires_grad else _gradient(leaf) for leaf in leaves]

    def _compare(self, split: Split, found: Tensor, whole: Tensor, what: str) -> None:
        if found.shape != whole.shape:
            raise self._error(split, f"{what} has shape {list(found.shape)}, the whole one {list(whole.shape)}")
        if not whole.is_floating_point():
            if not torch.equal(found, whole):
                raise self._error(split, f"{what} differs")
            return
        allowed = TOLERANCES.get(whole.dtype, 1e-4) * max(float(whole.abs().max()), 1.0) if whole.numel() else 0.0
        difference = float((found.double() - whole.double()).abs().max()) if whole.numel() else 0.0
        if not difference <= allowed:  # NaN differs
            raise self._error(split, f"{what} differs by {difference:.3g} (allowed {allowed:.1g})")

    def _error(self, split: Split, problem: str) -> RuleError:
        return RuleError(
            f"rule {self.row.spec!r} for {self.row.target} is wrong: with {split}, {problem}. "
            "Mark a factor that must be whole with '!', or leave out what is not so",
            details={"target": self.row.target, "rule": self.row.spec, "split": str(split), "problem": problem},
        )


def _leaves(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [None if x is None else x.detach().clone().requires_grad_(x.is_floating_point()) for x in tensors]


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().split(chr(10), 1)[0]}"

"""Run one operation under one strategy on a simulated mesh and compare it with the unsharded operation.

    p [x, y, *shape] --sum over the axes' dims--> operand --the operation--> result --gathered--> compare
                                                              sum(result · weights) --backward--> compare

Each float operand is a sum over leading dims, one an axis, so that an operand which may be Partial really
is the sum of different parts: a rule that lets Partial through a relu is caught.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from autopar.ir.graph import Graph, Node, Operand, Value
from autopar.ir.layout import P
from autopar.ir.mesh import Mesh
from autopar.passes.build import Model
from autopar.passes.positions import Positions, flat_operands, node_key, positions
from autopar.passes.strategies import Strategy, strategies
from autopar.runtime.ops import run_node
from autopar.runtime.simulate import simulate
from tests.lowered import lowered, model_of, type_of
from tests.rules.example import Arg, Example

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.5}
NAME = "op"


@dataclass(frozen=True)
class Case:
    """An example on a mesh: its graph, the tensors behind it and what one device computes."""

    example: Example
    mesh: Mesh
    model: Model
    node: Node
    tensors: dict[str, torch.Tensor]
    forward: tuple[torch.Tensor, ...]
    gradients: dict[str, torch.Tensor]
    tolerance: float  # of the largest value, at least 1

    def strategies(self) -> tuple[Strategy, ...]:
        """All that are legal, at every stride that fits: more than any model's positions offer."""
        rule = self.model.rules[node_key(self.model.graph, self.node)]
        found = positions(self.model.graph, self.model.rules, {})
        key = node_key(self.model.graph, self.node)
        strides = {f: tuple(("cut", d, n // d) for d in range(1, n) if n % d == 0) for f, n in rule.sizes.items()}
        everywhere = Positions(marks=found.marks, factors={**found.factors, key: strides})
        shapes = self.model.shapes[key]
        partial = [
            frozenset(self.mesh.names) if f"{name}_parts" in self.tensors else frozenset[str]()
            for name in flat_operands(self.node)
        ]
        return strategies(rule, everywhere, key, shapes, self.mesh, partial)


def case_of(example: Example, mesh: Mesh, dtype: torch.dtype = torch.float64) -> Case:
    """``dtype``: that of the floating-point operands."""
    generator = torch.Generator().manual_seed(zlib.crc32(str(example).encode()))
    work = _Builder(mesh, generator, dtype)
    operands = tuple(work.operand(operand) for operand in example.operands)
    bare = Node(results=(Value(NAME, type_of(torch.zeros(()).double())),), target=example.target, operands=operands,
                attrs=example.attrs)  # fmt: skip
    whole = [_filled(operand, work.whole) for operand in operands]
    forward = run_node(bare, whole, {}, torch.device("cpu"))
    names = [NAME, *(f"{NAME}{i}" for i in range(1, len(forward)))]
    node = replace(bare, results=tuple(Value(n, type_of(x)) for n, x in zip(names, forward, strict=True)))
    work.nodes.append(node)
    outputs = list(names)
    if any(x.requires_grad for x in forward):
        loss, outputs[:0] = work.loss(names, forward)
        loss.backward()
    gradients = {
        n: x.grad if x.grad is not None else torch.zeros_like(x) for n, x in work.tensors.items() if x.requires_grad
    }
    graph = Graph(name="one", nodes=tuple(work.nodes), outputs=tuple(outputs))
    tensors = {name: tensor.detach() for name, tensor in work.tensors.items()}
    found = tuple(x.detach() for x in forward)
    return Case(example, mesh, model_of(graph), node, tensors, found, gradients, TOLERANCES[dtype])


class _Builder:
    def __init__(self, mesh: Mesh, generator: torch.Generator, dtype: torch.dtype) -> None:
        self.mesh, self.generator, self.dtype = mesh, generator, dtype
        self.nodes: list[Node] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.whole: dict[str, torch.Tensor] = {}

    def operand(self, operand: object) -> Operand:
        if isinstance(operand, tuple):
            return tuple(None if item is None else self.source(item) for item in operand)
        return self.source(operand) if isinstance(operand, Arg) else None

    def source(self, arg: Arg) -> str:
        name = f"a{len(self.whole)}"
        drawn = self.rounded(arg.draw(self.generator))
        if drawn.dtype == torch.bool:
            self.stored(name, drawn, "constant")
            self.whole[name] = drawn
            return name
        sizes = tuple(size for _, size in self.mesh.axes)
        dims = tuple(range(len(sizes)))
        most = 5 if self.dtype == torch.float64 else 1  # what large parts cancel is lost where results are rounded
        parts = torch.randint(-most, most, (*sizes, *drawn.shape), generator=self.generator).to(drawn.dtype)
        if arg.kind != "int":
            parts += self.rounded(torch.rand(parts.shape, generator=self.generator, dtype=torch.float64))
        parts[(0,) * len(sizes)] += drawn - parts.sum(dims)
        self.stored(f"{name}_parts", parts.requires_grad_(arg.trains), "param" if arg.trains else "constant")
        summed = f"{name}_pairs" if arg.kind == "complex" else name
        self.whole[name] = parts.sum(dims)
        self.nodes.append(Node(results=(Value(summed, type_of(drawn)),), target="aten.sum.dim_IntList",
                               operands=(f"{name}_parts",), attrs=(("dim", dims),)))  # fmt: skip
        if arg.kind == "complex":
            self.whole[name] = torch.view_as_complex(self.whole[name])
            self.op(name, "autopar.as_complex", (summed,), self.whole[name])
        return name

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """In the element type of the case; below float64 as eighths, whose sums are exact in bf16 too."""
        if not values.is_floating_point() or self.dtype == torch.float64:
            return values
        return values.mul(8).round().div(8).to(self.dtype)

    def stored(self, name: str, tensor: torch.Tensor, target: str) -> None:
        self.tensors[name] = tensor
        self.nodes.append(Node(results=(Value(name, type_of(tensor)),), target=target, attrs=(("fqn", name),)))

    def loss(self, names: list[str], results: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, list[str]]:
        total: torch.Tensor | None = None
        last = ""
        for name, result in zip(names, results, strict=True):
            if not result.requires_grad:
                continue
            weights = torch.randn(result.shape, generator=self.generator, dtype=result.dtype)
            self.stored(f"{name}_w", weights, "constant")
            weighted = result * weights
            self.op(f"{name}_x", "aten.mul.Tensor", (name, f"{name}_w"), weighted)
            last_of = f"{name}_x"
            if weighted.is_complex():
                weighted, last_of = torch.view_as_real(weighted), f"{name}_r"
                self.op(last_of, "aten.view_as_real.default", (f"{name}_x",), weighted)
            part = weighted.sum()
            self.op(f"{name}_s", "aten.sum.default", (last_of,), part)
            if total is None:
                total, last = part, f"{name}_s"
            else:
                total = total + part
                self.op(f"{name}_t", "aten.add.Tensor", (last, f"{name}_s"), part)
                last = f"{name}_t"
        assert total is not None
        return total, [last]

    def op(self, name: str, target: str, operands: tuple[str, ...], like: torch.Tensor) -> None:
        self.nodes.append(Node(results=(Value(name, type_of(like)),), target=target, operands=operands))


def _filled(operand: Operand, known: dict[str, torch.Tensor]) -> object:
    if isinstance(operand, tuple):
        return tuple(None if name is None else known[name] for name in operand)
    return None if operand is None else known[operand]


def check(case: Case, chosen: Strategy) -> None:
    """Raise AssertionError or VerificationError where the sharded operation differs from the whole one."""
    mesh = case.mesh
    choices = {NAME: chosen.text(mesh)}
    for name, layout in zip(flat_operands(case.node), chosen.operands, strict=True):
        if name is not None and layout is not None and f"{name}_parts" in case.tensors:
            axes = {axis: f"d{i}" for i, axis in enumerate(mesh.names) if layout[axis] == P}
            if case.model.graph.producers()[name].target == "autopar.as_complex":
                choices[f"{name}_pairs"], choices[name] = axes, dict.fromkeys(axes, "P0")
            else:
                choices[name] = axes
    program = lowered(case.model, mesh, choices)
    found = simulate(program, {}, case.tensors)
    for expected, got in zip(case.forward, found.outputs[-len(case.forward) :], strict=True):
        _same(got, expected, "result", case.tolerance)
    if len(found.outputs) > len(case.forward):
        for name, gradient in case.gradients.items():
            _same(found.gradients[name], gradient, f"gradient of {name}", case.tolerance)


def _same(got: torch.Tensor, expected: torch.Tensor, what: str, tolerance: float) -> None:
    assert got.dtype == expected.dtype, f"{what}: {got.dtype}, not {expected.dtype}"
    assert got.shape == expected.shape, f"{what}: {list(got.shape)}, not {list(expected.shape)}"
    if not (expected.is_floating_point() or expected.is_complex()):
        assert torch.equal(got, expected), f"{what} differs"
        return
    scale = max(float(expected.abs().max()), 1.0) if expected.numel() else 1.0
    difference = float((got - expected).abs().max()) if expected.numel() else 0.0
    assert difference <= tolerance * scale, f"{what} differs by {difference:.3g}"


def some(found: tuple[Strategy, ...], limit: int, seed: str) -> Iterator[Strategy]:
    """All, or ``limit`` of them drawn at random."""
    if len(found) <= limit:
        yield from found
    else:
        yield from random.Random(seed).sample(found, limit)

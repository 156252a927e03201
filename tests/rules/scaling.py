"""Examples at other sizes: each factor of the rule is drawn anew, operands and sizes in attributes follow.

An example says which dims move together only through its rule, so shapes are rebuilt from factors. What a
rule does not say (the range of an index, sizes that attributes hold) stands in the tables here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import hypothesis.strategies as st
import torch
from hypothesis import assume

from autopar.ir.graph import Node, Value
from autopar.ir.mesh import Mesh
from autopar.ir.optable import TABLE, node_rule
from autopar.ir.rules import Dim, NodeRule
from autopar.ir.types import Attr
from autopar.passes.localize import SHAPE_ATTRS
from autopar.runtime.ops import run_node
from tests.lowered import type_of
from tests.rules.example import Arg, Example, Operand
from tests.rules.examples import EXAMPLES

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 13)  # ones, primes, smaller than an axis, not divisible by it
MESHES = ((("x", 2),), (("x", 3),), (("x", 4),), (("x", 2), ("y", 2)), (("x", 3), ("y", 2)))
DTYPES = (torch.float64, torch.float64, torch.float32, torch.bfloat16)
LARGEST = 3000  # elements of one operand

# Rows whose examples keep their sizes, by target or by the name of their derivation, and why.
FIXED = {
    "replicated": "nothing is split, whatever the sizes are",
    **{f"aten.{name}.default": "one number of all elements, which stay whole" for name in ("prod", "any", "all")},
    "autopar.advance": "the state of the random numbers has one length",
    "autopar.assign": "what it writes must be a buffer as it is stored, and summands of an operand are none",
}

# Factors that keep their size, by target or derivation.
KEPT: dict[str, tuple[str, ...]] = {
    "autopar.cross_entropy_from_stats": ("stat",),  # two sums, or three
    "autopar.cross_entropy_rows_from_stats": ("stat",),
    "convolution": ("g",),
    "group_norm": ("g",),
}

# Rows whose whole factors keep their size: windows and the like stand in attributes, and what is picked from
# bounds the index.
WHOLE_KEPT = (
    "aten.topk.default", "aten.kthvalue.default", "aten.one_hot.default", "aten.linalg_inv.default", "aten.scatter.src",
    "aten.scatter.value", "aten.scatter_add.default", "aten.scatter_reduce.two", "autopar.as_complex",
    "aten.view_as_real.default", "aten.slice_scatter.default",
)  # fmt: skip

# Derivations whose whole dims may have any size too. Elsewhere other operands, attributes or indices depend on
# them in ways that the rule does not say (kernels, gates, pieces), and torch does not check them all.
ANY_SIZE = (
    "along_dim", "attention", "delta_rule", "diff", "gather", "index_select", "layer_norm", "nonlinear_reduction",
    "pad", "slice_dim",
)  # fmt: skip

# Which dim of which operand bounds an index: (operand, dim), or the attribute that holds the dim.
INDEXED: dict[str, tuple[int, int | str]] = {
    "aten.embedding.default": (0, 0),
    "aten.index_select.default": (0, "dim"),
    "aten.gather.default": (0, "dim"),
    "autopar.count_targets": (1, 0),
    "autopar.experts": (3, 0),
    "autopar.expert_bias": (2, 0),
    **{f"autopar.{name}": (0, -1) for name in ("cross_entropy", "cross_entropy_rows", "cross_entropy_stats")},
}


@dataclass(frozen=True)
class Call:
    """An example at some sizes, on a mesh, in an element type."""

    example: Example
    mesh: Mesh
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.example} in {self.dtype} on mesh({self.mesh})"


def scales(example: Example) -> bool:
    """Whether it has operands to be resized, and its row does not stay as it is."""
    held = any(arg is not None for arg in flat(example.operands))
    return held and example.target not in FIXED and TABLE[example.target].spec not in FIXED


@st.composite
def calls(draw: st.DrawFn, target: str) -> Call:
    """A call of ``target`` at random sizes."""
    example = draw(st.sampled_from([e for e in EXAMPLES if e.target == target and scales(e)]))
    mesh = Mesh(draw(st.sampled_from(MESHES)))
    rule = whole_rule(example)
    free = [f for f in rule.sizes if _free(example.target, rule, f)]
    sizes = {f: draw(st.sampled_from([*SIZES, mesh.world_size, 2 * mesh.world_size]), label=f) for f in free}
    made = resized(example, rule, {**rule.sizes, **sizes})
    assume(all(math.prod(arg.shape) <= LARGEST for arg in flat(made.operands) if arg is not None))
    return Call(made, mesh, draw(st.sampled_from(DTYPES)))


def whole_rule(example: Example) -> NodeRule:
    """The rule of the example as it is written."""
    drawn = drawn_operands(example)
    node = Node(results=(Value("op", type_of(torch.zeros(()).double())),), target=example.target,
                operands=tuple(names_of(example.operands)), attrs=example.attrs)  # fmt: skip
    results = run_node(node, drawn, {}, torch.device("cpu"))
    shapes = [None if arg is None else arg.shape for arg in flat(example.operands)]
    named = replace(node, results=tuple(Value(f"op{i}", type_of(x)) for i, x in enumerate(results)))
    return node_rule(named, shapes, [tuple(x.shape) for x in results])


def flat(operands: tuple[Operand, ...]) -> list[Arg | None]:
    return [arg for item in operands for arg in (item if isinstance(item, tuple) else (item,))]


def drawn_operands(example: Example) -> list[object]:
    generator = torch.Generator().manual_seed(0)

    def one(arg: Arg | None) -> object:
        if arg is None:
            return None
        drawn = arg.draw(generator)
        return torch.view_as_complex(drawn) if arg.kind == "complex" else drawn

    return [tuple(map(one, item)) if isinstance(item, tuple) else one(item) for item in example.operands]


def names_of(operands: tuple[Operand, ...]) -> list[str | None | tuple[str | None, ...]]:
    def one(arg: Arg | None, name: str) -> str | None:
        return None if arg is None else name

    return [
        tuple(one(arg, f"a{i}_{j}") for j, arg in enumerate(item)) if isinstance(item, tuple) else one(item, f"a{i}")
        for i, item in enumerate(operands)
    ]


def _free(target: str, rule: NodeRule, factor: str) -> bool:
    """Whether the factor may have another size; those that stand in no dim may not."""
    spec = TABLE[target].spec
    if factor in (*KEPT.get(target, ()), *KEPT.get(spec, ())):
        return False
    if factor in rule.whole and (target in WHOLE_KEPT or ("->" not in spec and spec not in ANY_SIZE)):
        return False
    return any(factor in dim for dims in (*rule.operands, *rule.results) for dim in dims)


def resized(example: Example, rule: NodeRule, sizes: Mapping[str, int]) -> Example:
    """The example with other sizes of its factors."""
    dims = iter(rule.operands)
    operands: list[Operand] = []
    for item in example.operands:
        if isinstance(item, tuple):
            operands.append(tuple(_resized_arg(arg, next(dims), sizes) for arg in item))
        else:
            operands.append(_resized_arg(item, next(dims), sizes))
    made = replace(example, operands=tuple(operands))
    made = replace(made, attrs=tuple((key, _attr(made, rule, sizes, key, value)) for key, value in example.attrs))
    return _bounded(made)


def _extent(dim: Dim, sizes: Mapping[str, int]) -> int:
    return math.prod(sizes[f] for f in dim)


def _resized_arg(arg: Arg | None, dims: tuple[Dim, ...], sizes: Mapping[str, int]) -> Arg | None:
    return None if arg is None else replace(arg, shape=tuple(_extent(dim, sizes) for dim in dims))


def _attr(example: Example, rule: NodeRule, sizes: Mapping[str, int], key: str, value: Attr) -> Attr:
    """Attributes that hold sizes."""
    target, first = example.target, next((arg for arg in flat(example.operands) if arg is not None), None)
    if (target, key) in SHAPE_ATTRS.items():
        return tuple(_extent(dim, sizes) for dim in rule.results[0])
    if first is None:
        return value
    if key == "split_sizes":
        dim = int(str(dict(example.attrs).get("dim", 0)))
        return tuple(_extent(dims[dim], sizes) for dims in rule.results)
    if key == "normalized_shape" and isinstance(value, tuple):
        return first.shape[len(first.shape) - len(value) :]
    if key == "classes":
        return first.shape[-1]
    if key == "padding_idx" and isinstance(value, int):
        return value % first.shape[0]
    return value


def _bounded(example: Example) -> Example:
    """Indices below the extent that they point into."""
    if example.target not in INDEXED:
        return example
    at, where = INDEXED[example.target]
    bound = example.operands[at] if at < len(example.operands) else None
    if not isinstance(bound, Arg):
        return example
    dim = int(str(dict(example.attrs).get(where, 0))) if isinstance(where, str) else where
    high = bound.shape[dim]
    operands = tuple(replace(a, high=high) if isinstance(a, Arg) and a.kind == "int" else a for a in example.operands)
    return replace(example, operands=operands)

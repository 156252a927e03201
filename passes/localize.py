"""One node in local terms: sizes of this device's part, and operations that need to know their offset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autopar.ir.errors import IRError
from autopar.ir.graph import Node, sorted_attrs
from autopar.ir.layout import Layout
from autopar.ir.types import Attr
from autopar.passes.randomness import DRAWS
from autopar.passes.strategies import Strategy

# Attributes that hold the shape of the result.
SHAPE_ATTRS = {
    "aten.reshape.default": "shape", "aten.expand.default": "size", "aten.full.default": "size",
}  # fmt: skip
# Attributes that count the groups ``g`` of the channels.
GROUP_ATTRS = {"aten.convolution.default": "groups", "aten.group_norm.default": "num_groups"}
# The operand whose first dim is the experts.
EXPERTS = {"autopar.experts": 3, "autopar.expert_bias": 2}


def localize(node: Node, chosen: Strategy, shapes: Sequence[tuple[int, ...] | None]) -> Node:
    """The node as one device runs it. ``shapes``: global shapes of its flattened operands.

    Requires: operands are in the layouts that ``chosen`` needs. Attributes become local; a lookup in a
    sharded vocabulary, the picked logits of sharded classes, a part of the experts and causal attention over a part of
    the rows get a ``start`` attribute, draws an ``index``, experts that tokens are sent to an ``exchange``.
    """
    if node.target in DRAWS:
        kept = {key: value for key, value in node.attrs if key != "shape"}
        index = _index(chosen.results[0], node.results[0].type.shape)
        return replace(node, attrs=sorted_attrs({**kept, "index": index}))
    if node.target in SHAPE_ATTRS:
        local = chosen.results[0].local_shape(node.results[0].type.shape)
        return node.with_attrs(**{SHAPE_ATTRS[node.target]: local})
    if node.target == "aten.split_with_sizes.default":
        dim = int(str(node.attr("dim", 0)))
        sizes = tuple(
            layout.local_shape(value.type.shape)[dim]
            for layout, value in zip(chosen.results, node.results, strict=True)
        )
        return node.with_attrs(split_sizes=sizes)
    if node.target in GROUP_ATTRS:
        name = GROUP_ATTRS[node.target]
        owned = zip(chosen.results[0].mesh.axes, chosen.choices, strict=True)
        ways = math.prod(size for (_, size), choice in owned if choice.factor == "g")
        return node.with_attrs(**{name: int(str(node.attr(name))) // ways})
    if node.target in EXPERTS:
        at = EXPERTS[node.target]
        layout, shape = chosen.operands[at], shapes[at]
        if not _split(layout, 0):
            return node
        made = _with_start(node, node.target, layout, shape, 0)
        return _exchanged(made, chosen, shape) if node.target == "autopar.experts" and shape else made
    if node.target == "aten.embedding.default" and _split(chosen.operands[0], 0):
        return _with_start(node, "autopar.embedding_shard", chosen.operands[0], shapes[0], 0)
    if node.target in ("autopar.cross_entropy_stats", "autopar.row_max") and shapes[0] is not None:
        dim, layout = len(shapes[0]) - 1, chosen.operands[0]
        assert layout is not None
        padded = layout.padded(dim, shapes[0][dim])
        if padded:
            node = node.with_attrs(classes=shapes[0][dim])
        if padded or node.target == "autopar.cross_entropy_stats":
            return _with_start(node, node.target, layout, shapes[0], dim)
        return node
    if node.target == "aten.scaled_dot_product_attention.default" and node.attr("is_causal") is True:
        assert shapes[0] is not None
        dim = len(shapes[0]) - 2
        if _split(chosen.operands[0], dim):
            made = _with_start(node, "autopar.sdpa_rows", chosen.operands[0], shapes[0], dim)
            kept = {key: value for key, value in made.attrs if key in ("scale", "start")}
            return Node(results=made.results, target=made.target, operands=made.operands[:3],
                        attrs=tuple(sorted(kept.items())), source=made.source)  # fmt: skip
    return node


def _exchanged(node: Node, chosen: Strategy, shape: tuple[int, ...]) -> Node:
    """Experts with how many there are for the tokens here; ``exchange`` names the axis that brings those of others.

    Then ``stride`` experts lie between those of one device along it and of the next, and ``start`` leaves it out.
    """
    mesh, start = chosen.results[0].mesh, node.attr("start")
    assert isinstance(start, tuple)
    axis = next((a for a, choice in zip(mesh.names, chosen.choices, strict=True) if choice.into is not None), None)
    if axis is None:
        return node.with_attrs(among=shape[0])
    strides = {str(pair[0]): pair[1] for pair in start if isinstance(pair, tuple)}
    rest = tuple(pair for pair in start if isinstance(pair, tuple) and pair[0] != axis)
    return node.with_attrs(among=shape[0] // mesh.size(axis), exchange=axis, stride=strides[axis], start=rest)


def _index(layout: Layout, shape: tuple[int, ...]) -> tuple[Attr, ...]:
    """For each dim its factors and who owns them: the global index of every element that a device has."""
    return tuple(
        tuple((factor.size, factor.axis) for factor in layout.factors(dim, extent)) for dim, extent in enumerate(shape)
    )


def _split(layout: Layout | None, dim: int) -> bool:
    return layout is not None and bool(layout.owners(dim))


def _with_start(
    node: Node, target: str, layout: Layout | None, shape: tuple[int, ...] | None, dim: int
) -> Node:
    """The node renamed, with ``start``: (axis, stride) pairs that add up to the first global index."""
    assert layout is not None and shape is not None
    start: list[Attr] = []
    end = 1
    for outer, size, axis in layout.owners(dim):
        if outer != end:
            raise IRError(f"{node.results[0].name} = {node.target}: dim {dim} is split in strides, {layout}")
        end = outer * size
        start.append((axis, -(-shape[dim] // end)))
    attrs = {**dict(node.attrs), "start": tuple(start)}
    return Node(
        results=node.results,
        target=target,
        operands=node.operands,
        attrs=tuple(sorted(attrs.items())),
        source=node.source,
    )

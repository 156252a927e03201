"""Rules of operations on pictures, volumes and sound: windows that slide over the last dims.

A dim over which windows slide stays whole: nothing exchanges borders between devices. Where windows meet
without overlapping (the patches of a vision transformer, a 1 x 1 convolution) the dim is (window, element)
and windows may be split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autopar.ir.derive import Shape, derivation
from autopar.ir.graph import Node
from autopar.ir.rules import Dim, NodeRule


class _Labels:
    """Factors named so far. Those of size one stand nowhere."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.whole: set[str] = set()

    def dim(self, *factors: tuple[str, int]) -> Dim:
        self.sizes.update(factors)
        return tuple(name for name, size in factors if size > 1)

    def whole_dim(self, name: str, size: int) -> Dim:
        self.whole.add(name)
        return self.dim((name, size))

    def windows(self, at: int, wide: int, count: int, kernel: int, *, disjoint: bool) -> tuple[Dim, Dim, Dim]:
        """Labels of the dim under the windows, of the dim that counts them, and of the kernel."""
        if disjoint and wide == count * kernel:
            inside = self.whole_dim(f"k{at}", kernel)
            counted = self.dim((f"t{at}", count))
            return counted + inside, counted, inside
        return tuple(  # type: ignore[return-value]
            self.whole_dim(f"{name}{at}", size) for name, size in (("x", wide), ("t", count), ("k", kernel))
        )

    def rule(self, operands: Sequence[tuple[Dim, ...]], results: Sequence[tuple[Dim, ...]]) -> NodeRule:
        whole = frozenset(name for name in self.whole if self.sizes[name] > 1)
        return NodeRule(sizes=self.sizes, operands=tuple(operands), results=tuple(results), whole=whole)


def _each(node: Node, name: str, default: Shape) -> Shape:
    """An attribute with one number for each dim that windows slide over."""
    value = node.attr(name)
    return tuple(int(v) for v in value if isinstance(v, int)) if isinstance(value, tuple) and value else default


@derivation
def convolution(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``n (g ci) x…, (g co) ci k… -> n (g co) t…``; transposed: ``n (g ci) t…, (g ci) co k… -> n (g co) x…``.

    Without bias. Columns are ``co``, rows ``ci``; a depthwise convolution has ``g`` alone.
    """
    x, w, y = operands[0], operands[1], results[0]
    assert x is not None and w is not None
    turned = node.attr("transposed") is True
    groups = int(str(node.attr("groups", 1)))
    made = _Labels()
    n = made.dim(("n", x[0]))
    g, ci, co = ("g", groups), ("ci", x[1] // groups), ("co", y[1] // groups)
    ones = (1,) * (len(x) - 2)
    strides, pads = _each(node, "stride", ones), _each(node, "padding", (0,) * len(ones))
    gaps = _each(node, "dilation", ones)
    spatial = [
        made.windows(i, wide, count, kernel, disjoint=strides[i] == kernel and not pads[i] and gaps[i] == 1)
        for i, (wide, count, kernel) in enumerate(
            zip(y[2:] if turned else x[2:], x[2:] if turned else y[2:], w[2:], strict=True)
        )
    ]
    before, after = (1, 0) if turned else (0, 1)
    weight = (made.dim(g, ci), made.dim(co)) if turned else (made.dim(g, co), made.dim(ci))
    return made.rule(
        [
            (n, made.dim(g, ci), *(dims[before] for dims in spatial)),
            (*weight, *(dims[2] for dims in spatial)),
            *((),) * (len(operands) - 2),
        ],
        [(n, made.dim(g, co), *(dims[after] for dims in spatial))],
    )


@derivation
def pool(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """Windows over as many last dims as ``kernel_size`` has; indices, if asked for, need those dims whole."""
    x, y = operands[0], results[0]
    assert x is not None
    kernels = _each(node, "kernel_size", ())
    lead = len(x) - len(kernels)
    ones = (1,) * len(kernels)
    strides, pads = _each(node, "stride", kernels), _each(node, "padding", (0,) * len(kernels))
    gaps = _each(node, "dilation", ones)
    made = _Labels()
    free = tuple(made.dim((f"d{i}", extent)) for i, extent in enumerate(x[:lead]))
    spatial = [
        made.windows(
            i, x[lead + i], y[lead + i], kernels[i],
            disjoint=len(results) == 1 and strides[i] == kernels[i] and not pads[i] and gaps[i] == 1,
        )
        for i in range(len(kernels))
    ]  # fmt: skip
    return made.rule(
        [(*free, *(dims[0] for dims in spatial))],
        [(*free, *(dims[1] for dims in spatial))] * len(results),
    )


@derivation
def resize(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """The last dims are made larger or smaller, and are whole: as many as ``output_size`` has, else all but two."""
    x, y = operands[0], results[0]
    assert x is not None
    given = node.attr("output_size")
    lead = len(x) - len(given) if isinstance(given, tuple) else 2
    made = _Labels()
    free = tuple(made.dim((f"d{i}", extent)) for i, extent in enumerate(x[:lead]))
    before = tuple(made.whole_dim(f"x{i}", extent) for i, extent in enumerate(x[lead:]))
    after = tuple(made.whole_dim(f"y{i}", extent) for i, extent in enumerate(y[lead:]))
    return made.rule([(*free, *before)], [(*free, *after)] * len(results))


@derivation
def columns(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """im2col ``n c !h !w -> n (c !k) !l``, and col2im the other way; n may be missing."""
    x, y = operands[0], results[0]
    assert x is not None
    picture, flat = (y, x) if "col2im" in node.target else (x, y)
    made = _Labels()
    n = tuple(made.dim(("n", extent)) for extent in flat[:-2])
    c = ("c", picture[-3])
    whole = tuple(made.whole_dim(f"x{i}", extent) for i, extent in enumerate(picture[-2:]))
    inside = made.whole_dim("k", flat[-2] // picture[-3])
    labels = {
        "picture": (*n, made.dim(c), *whole),
        "flat": (*n, made.dim(c) + inside, made.whole_dim("l", flat[-1])),
    }
    before, after = ("flat", "picture") if "col2im" in node.target else ("picture", "flat")
    return made.rule([labels[before]], [labels[after]])


@derivation
def sliding(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``unfold``: windows over ``dimension``, their elements in a new last dim."""
    x, y = operands[0], results[0]
    assert x is not None
    at = int(str(node.attr("dimension")))
    at += len(x) if at < 0 else 0
    size, step = int(str(node.attr("size"))), int(str(node.attr("step")))
    made = _Labels()
    dims = [made.dim((f"d{i}", extent)) if i != at else () for i, extent in enumerate(x)]
    under, counted, inside = made.windows(at, x[at], y[at], size, disjoint=size == step)
    after = [*dims, inside]
    dims[at], after[at] = under, counted
    return made.rule([tuple(dims)], [tuple(after)])


@derivation
def grid_sample(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``n c !x…, n y… !two -> n c y…``: every sample looks anywhere in its own picture."""
    del node
    x, y = operands[0], results[0]
    assert x is not None
    made = _Labels()
    n, c = made.dim(("n", x[0])), made.dim(("c", x[1]))
    whole = tuple(made.whole_dim(f"x{i}", extent) for i, extent in enumerate(x[2:]))
    free = tuple(made.dim((f"y{i}", extent)) for i, extent in enumerate(y[2:]))
    two = made.whole_dim("two", len(x) - 2)
    return made.rule([(n, c, *whole), (n, *free, two)], [(n, c, *free)])


@derivation
def group_norm(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``n (g !c) !x…, (g !c), (g !c) -> n (g !c) !x…``: a group is normalized by itself."""
    x = results[0]
    groups = int(str(node.attr("num_groups")))
    made = _Labels()
    n = made.dim(("n", x[0]))
    channels = made.dim(("g", groups)) + made.whole_dim("c", x[1] // groups)
    dims = (n, channels, *(made.whole_dim(f"x{i}", extent) for i, extent in enumerate(x[2:])))
    scales = [() if shape is None else (channels,) for shape in operands[1:]]
    return made.rule([dims, *scales], [dims])


@derivation
def recurrent(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """LSTM, GRU and RNN over a padded batch: every sample has a state of its own; all else is whole.

    Operands: the sequence, the states [layers, batch, hidden], the weights. ``w`` counts the weights.
    """
    x, out = operands[0], results[0]
    assert x is not None
    batch = 0 if node.attr("batch_first") is True else 1
    states = len(results) - 1
    made = _Labels()

    def label(name: str, shape: Shape, at: int | None) -> tuple[Dim, ...]:
        return tuple(
            made.dim(("b", extent)) if i == at else made.whole_dim(f"{name}{i}", extent)
            for i, extent in enumerate(shape)
        )

    inputs = [label("x", x, batch)]
    for index, shape in enumerate(operands[1:]):
        inputs.append(() if shape is None else label(f"i{index}_", shape, 1 if index < states else None))
    outputs = [label("o", out, batch), *(label(f"r{i}_", shape, 1) for i, shape in enumerate(results[1:]))]
    weights = sum(math.prod(shape) for shape in operands[1 + states :] if shape is not None)
    made.sizes |= {"w": weights, "t": x[1 - batch]}
    return made.rule(inputs, outputs)

"""One direction of a conversion step: what is moved over one axis, and where it sits locally."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autopar.ir.convert import Step
from autopar.ir.graph import Node


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """``kind`` over ``axis``; dims and outers as in ``convert.Step``, for this direction.

    For all_to_all the operand is split at (dim_to, outer_to) and the result joined at (dim, outer);
    for all other kinds (dim, outer) is the place in the sharded side.
    """

    kind: str
    axis: str
    dim: int = 0
    outer: int = 1
    dim_to: int = 0
    outer_to: int = 1
    reduce: str = "sum"
    extent: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoWay:
    """A conversion: the move of the values and the move of their gradients.

    ``differentiable`` is False where no gradient passes: it is not wanted, or the reduction is a max.
    ``once``: the gradients are added up at the end of a step.
    """

    forward: Move
    backward: Move
    differentiable: bool
    runtime_owned: bool = False
    once: bool = False


def of_step(step: Step) -> TwoWay:
    """Both directions of a step."""
    forward = Move(
        kind=step.kind,
        axis=step.axis,
        dim=step.dim,
        outer=step.outer,
        dim_to=step.dim_to,
        outer_to=step.outer_to,
        reduce=step.reduce,
        extent=step.extent,
    )
    return _two_way(forward, step.backward)


def of_node(node: Node) -> TwoWay:
    """Both directions of a ``comm.*`` node."""

    def number(name: str, default: int) -> int:
        value = node.attr(name, default)
        assert isinstance(value, int)
        return value

    forward = Move(
        kind=node.target.removeprefix("comm."),
        axis=str(node.attr("axis")),
        dim=number("dim", 0),
        outer=number("outer", 1),
        dim_to=number("dim_to", 0),
        outer_to=number("outer_to", 1),
        reduce=str(node.attr("reduce", "sum")),
        extent=number("extent", 0),
    )
    found = _two_way(forward, str(node.attr("backward", "none")))
    return replace(found, runtime_owned=node.attr("owner") == "runtime", once=node.attr("owner") == "step")


def _two_way(forward: Move, backward: str) -> TwoWay:
    keeps_shape = forward.kind in ("all_reduce", "mask", "identity")
    kind = "identity" if backward == "none" else backward
    back = replace(forward, kind=kind, reduce="sum")
    if kind == "all_to_all":
        back = replace(
            back, dim=forward.dim_to, outer=forward.outer_to, dim_to=forward.dim, outer_to=forward.outer
        )
    differentiable = (backward != "none" or keeps_shape) and forward.reduce != "max"
    return TwoWay(forward=forward, backward=back, differentiable=differentiable)

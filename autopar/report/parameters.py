"""Each parameter as the work uses it and as it is kept between steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autopar.cli.plan_placements import WHOLE, placed_groups
from autopar.cli.plan_view import REST
from autopar.ir.plan import Plan
from autopar.ir.types import TensorType
from autopar.passes.patterns import starred
from autopar.report.axes import slots_of
from autopar.report.matrix import pictogram
from autopar.report.svg import Svg


@dataclass(frozen=True, kw_only=True)
class Placed:
    """``splits``: (axis, number of its colour, text) of the axes on which it is not whole."""

    drawing: Svg
    splits: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    type: str
    count: int
    used: Placed
    kept: Placed


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters of one repeated block."""

    title: str
    rows: tuple[Row, ...]


def groups(plan: Plan) -> tuple[Group, ...]:
    """The rest of the model first, then the blocks by name."""
    members: dict[str, list[str]] = {}
    for fqn, kind in plan.fingerprint.parameters.items():
        for key in dict.fromkeys((fqn, starred(fqn))):
            members.setdefault(key, []).append(kind)
    return tuple(
        Group(title=group.title or REST, rows=tuple(_row(plan, members, *part) for part in group.parts))
        for group in placed_groups(plan)
    )


def _row(plan: Plan, members: Mapping[str, list[str]], name: str, patterns: Sequence[str]) -> Row:
    kinds = [kind for pattern in patterns for kind in members.get(pattern, [])]
    shape = TensorType.parse(kinds[0]).shape if kinds else (1, 1)
    used = plan.placements.get(patterns[0], {})
    return Row(
        name=name, type=kinds[0] if kinds else "", count=len(kinds) or 1, used=_placed(plan, shape, used),
        kept=_placed(plan, shape, plan.storage.get(patterns[0], used)),
    )  # fmt: skip


def _placed(plan: Plan, shape: tuple[int, ...], choices: Mapping[str, str]) -> Placed:
    ordered = {axis: choices[axis] for axis in (*plan.axes, *sorted(choices)) if axis in choices}
    slots = slots_of(plan)
    return Placed(
        drawing=pictogram(shape, ordered, plan.mesh, slots),
        splits=tuple((axis, slots.get(axis, 0), text) for axis, text in ordered.items() if text != WHOLE),
    )

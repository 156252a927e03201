"""Values of options that are more than one word: meshes, constraints, durations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autopar.ir.errors import UsageError

if TYPE_CHECKING:
    from autopar.ir.constraints import Constraint

_AXIS = re.compile(r"([a-z][a-z0-9_]*)=(-1|[1-9]\d{0,6})", re.ASCII)


def parse_mesh(text: str) -> dict[str, int]:
    """``dp=2,tp=4`` as sizes by axis, in order; -1 is an axis whose size is searched."""
    mesh: dict[str, int] = {}
    for part in text.split(","):
        match = _AXIS.fullmatch(part.strip())
        if match is None:
            raise UsageError(
                f"--mesh {text}: {part.strip()!r} is not AXIS=SIZE with a size of 1 or more, "
                f"or -1 to leave it free",
                details={"option": "--mesh", "value": text},
            )
        if match[1] in mesh:
            raise UsageError(f"--mesh {text}: axis {match[1]} is given twice", details={"option": "--mesh"})
        mesh[match[1]] = int(match[2])
    return mesh


def parse_constraints(texts: Sequence[str]) -> tuple[Constraint, ...]:
    """Each ``--constraint`` in order."""
    from autopar.ir.constraints import Constraint

    try:
        return tuple(map(Constraint.parse, texts))
    except UsageError as error:
        raise UsageError(f"--constraint {error}", details={"option": "--constraint", **error.details}) from None


def parse_time_limit_s(text: str) -> float:
    """Seconds, above zero."""
    from autopar.cost_model.units import parse_duration_s

    seconds = parse_duration_s(text)
    if seconds <= 0:
        raise UsageError(f"--time-limit {text}: must be more than zero", details={"option": "--time-limit"})
    return seconds

"""Values of options that are more than one word: meshes, constraints, durations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autopar.ir.errors import UsageError

_AXIS = re.compile(r"([a-z][a-z0-9_]*)=(-1|[1-9]\d{0,6})", re.ASCII)
_DIM = re.compile(r"-?\d{1,3}", re.ASCII)
_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_CONSTRAINT_FORMS = "replicate:PATTERN or split:PATTERN:dim=0,axis=tp"


@dataclass(frozen=True, kw_only=True)
class Replicate:
    """Parameters that match ``pattern`` are used whole on every device."""

    pattern: str


@dataclass(frozen=True, kw_only=True)
class Split:
    """Parameters that match ``pattern`` are used split along ``dim`` over the mesh axis ``axis``."""

    pattern: str
    dim: int
    axis: str


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


def parse_constraints(texts: Sequence[str]) -> tuple[Replicate | Split, ...]:
    """Each ``--constraint`` in order."""
    return tuple(map(_parse_constraint, texts))


def _parse_constraint(text: str) -> Replicate | Split:
    kind, _, rest = text.partition(":")
    if kind == "replicate" and rest:
        return Replicate(pattern=rest)
    pattern, _, tail = rest.rpartition(":")
    parts = dict(part.strip().partition("=")[::2] for part in tail.split(","))
    is_split = kind == "split" and pattern and parts.keys() == {"dim", "axis"} and tail.count(",") == 1
    if is_split and _DIM.fullmatch(parts["dim"]) and _NAME.fullmatch(parts["axis"]):
        return Split(pattern=pattern, dim=int(parts["dim"]), axis=parts["axis"])
    raise UsageError(
        f"--constraint {text}: not a constraint; write {_CONSTRAINT_FORMS}",
        details={"option": "--constraint", "value": text},
    )


def parse_time_limit_s(text: str) -> float:
    """Seconds, above zero."""
    from autopar.cost_model.units import parse_duration_s

    seconds = parse_duration_s(text)
    if seconds <= 0:
        raise UsageError(f"--time-limit {text}: must be more than zero", details={"option": "--time-limit"})
    return seconds

"""What a user knows of a model: this part is replicated, that one is split, this one stands in that pipeline stage."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import Self

from autopar.ir.errors import UsageError
from autopar.ir.layout import Layout, Shard

FORMS = "replicate:PATTERN, replicate:PATTERN:devices=8, split:PATTERN:dim=0,axis=tp or stage:PATTERN:index=1"

# Options of each kind, and what they may be.
_OPTIONS = {
    "replicate": {"devices": re.compile(r"[1-9]\d{0,6}", re.ASCII)},
    "split": {"dim": re.compile(r"-?\d{1,3}", re.ASCII), "axis": re.compile(r"[a-z][a-z0-9_]*", re.ASCII)},
    "stage": {"index": re.compile(r"\d{1,6}", re.ASCII)},
}
_OPTIONAL = ("devices",)


@dataclass(frozen=True, slots=True)
class Constraint:
    """Parameters that match ``pattern`` (``*``, ``?``, ``[...]``), or that the modules it names have.

    ``axis``: they are computed with split in ``dim`` over that mesh axis. ``index``: they stand in that pipeline stage.
    Neither: they are computed with whole on every device, and with ``devices`` a pipeline stage has so many of them.
    """

    pattern: str
    dim: int | None = None
    axis: str | None = None
    index: int | None = None
    devices: int | None = None

    @property
    def kind(self) -> str:
        """replicate, split or stage."""
        return "split" if self.axis is not None else "replicate" if self.index is None else "stage"

    def __str__(self) -> str:
        given = [(name, getattr(self, name)) for name in _OPTIONS[self.kind]]
        options = ",".join(f"{name}={value}" for name, value in given if value is not None)
        return f"{self.kind}:{self.pattern}{':' if options else ''}{options}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Inverse of ``str``. Raises UsageError, with the forms that there are, for anything else."""
        kind, _, rest = text.partition(":")
        pattern, _, tail = rest.rpartition(":") if "=" in rest else (rest, "", "")
        parts = [part.strip().partition("=")[::2] for part in tail.split(",")] if tail else []
        known, given = _OPTIONS.get(kind, {}), dict(parts)
        legal = len(given) == len(parts) and all(n in known and known[n].fullmatch(v) for n, v in parts)
        if not pattern or kind not in _OPTIONS or not legal or any(n not in (*given, *_OPTIONAL) for n in known):
            raise UsageError(f"{text!r} is not a constraint; write {FORMS}", details={"value": text})
        return cls(pattern, **{name: value if name == "axis" else int(value) for name, value in given.items()})  # type: ignore[arg-type]

    def matches(self, fqn: str) -> bool:
        """Whether a parameter of that name is meant, itself or by a module that has it."""
        return fnmatch.fnmatchcase(fqn, self.pattern) or fnmatch.fnmatchcase(fqn, f"{self.pattern}.*")

    def allows(self, layout: Layout) -> bool:
        """Whether computing may need the parameter in this layout. Requires: ``dim`` counts from the first."""
        if self.kind == "stage":
            return True
        if self.axis is None:
            return not any(isinstance(placement, Shard) for placement in layout.placements)
        placement = layout[self.axis] if self.axis in layout.mesh.names else None
        return isinstance(placement, Shard) and placement.dim == self.dim

    def contradicts(self, other: Constraint) -> bool:
        """Whether no parameter can be as both say. Requires: ``dim`` of both counts from the first."""
        if self.kind == other.kind == "stage":
            return self.index != other.index
        if "stage" in (self.kind, other.kind):
            return False
        if self.kind != other.kind:
            return True
        if self.kind == "split":
            return self.axis == other.axis and self.dim != other.dim
        return None not in (self.devices, other.devices) and self.devices != other.devices

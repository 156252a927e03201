"""Models to plan for by name (``zoo:gpt2``): exact published sizes, on meta, without weights."""

from __future__ import annotations

from autopar.ir.errors import UsageError
from autopar.zoo.entry import Entry
from autopar.zoo.models import ENTRIES


def find(name: str) -> Entry:
    """The entry called ``name``; ``UsageError`` with the nearest names if there is none."""
    if name in ENTRIES:
        return ENTRIES[name]
    from autopar.cost_model.toml_file import nearest

    raise UsageError(
        f"the zoo has no model {name!r}; {nearest(name, list(ENTRIES))}",
        details={"model": name, "known": list(ENTRIES)},
    )


__all__ = ["ENTRIES", "Entry", "find"]

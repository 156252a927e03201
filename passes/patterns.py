"""Names of repeated layers as one pattern: ``layers.0.w``, ``layers.1.w`` → ``layers.*.w``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

V = TypeVar("V")


def patterns(named: Mapping[str, V]) -> dict[str, V]:
    """Merge names that differ in their numbers only and have the same value; order of first appearance.

    A pattern whose members have different values stays apart, name by name.
    """
    groups: dict[str, list[str]] = {}
    for name in named:
        groups.setdefault(starred(name), []).append(name)
    found: dict[str, V] = {}
    for pattern, members in groups.items():
        values = [named[name] for name in members]
        if len(members) > 1 and all(value == values[0] for value in values):
            found[pattern] = values[0]
        else:
            found.update({name: named[name] for name in members})
    return found


def starred(name: str) -> str:
    """The pattern that a name and those of equal layers have in common."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))

"""What the tensors of a model are made of in files that name and cut them otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

Parts: TypeAlias = Mapping[str, Sequence[Tensor]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Origin:
    """What tensors of a model are made of.

    ``sources``: names in the files, in order, by the role that ``make`` knows them by. ``make``: the model's tensors by
    name; None: the one source as it is. ``by_row``: row i of what is made follows from the i-th source of each role.
    """

    names: tuple[str, ...]
    sources: Mapping[str, tuple[str, ...]]
    make: Callable[[Parts], Mapping[str, Tensor]] | None = None
    by_row: bool = False

    def made(self, tensors: Mapping[str, Tensor], rows: range | None = None) -> Mapping[str, Tensor]:
        """From tensors of the files by name. ``rows``: of these sources alone."""
        if self.make is None:
            return {self.names[0]: tensors[next(iter(self.sources.values()))[0]]}
        return self.make({
            role: [tensors[name] for name in _of(names, rows)] for role, names in self.sources.items()
        })  # fmt: skip

    def needed(self, rows: range | None) -> list[str]:
        """Names in the files."""
        return [name for names in self.sources.values() for name in _of(names, rows)]


# From tensors on meta, by their names in the files: what a model's tensors are made of.
Origins: TypeAlias = "Callable[[Mapping[str, Tensor]], Sequence[Origin]]"


def as_named(files: Mapping[str, Tensor]) -> list[Origin]:
    """Every tensor is the model's of that name."""
    return [Origin(names=(name,), sources={name: (name,)}) for name in files]


def _of(names: tuple[str, ...], rows: range | None) -> tuple[str, ...]:
    return names if rows is None else names[rows.start : rows.stop]

"""Which experts have their turn together, where they have it one after the other: one, or two.

Few rows by a matrix that is not in the cache take as long as memory takes to bring it. In a batch of two each of two
threads has a matrix of its own, where in one product both bring the same one: a layer takes 4 to 17 % less (MKL,
float32, two threads, 32 to 256 rows; with more threads not measured). The two have about equally many rows, and the
fewer are filled up with some again.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_ROWS = 384  # of an expert: with more, products alone keep every thread busy
_MOST_FILLED = 1.1  # rows of a batch for those that count


@dataclass(frozen=True)
class Turn:
    """``parts``: of the rows of all experts, those of each of these; as many but in a turn of two."""

    experts: tuple[int, ...]
    parts: tuple[slice, ...]

    @property
    def most(self) -> int:
        """Rows of the one with more."""
        return max(map(_count, self.parts))

    def filled(self, token: Tensor) -> Tensor:
        """``token`` [n] of all rows → of these, each as many as the most."""
        if len(self.parts) == 1:
            return token[self.parts[0]]
        most, pieces = self.most, [token[part] for part in self.parts]
        return torch.cat([row for each in pieces for row in (each, each[: most - len(each)])])

    def product(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """Filled rows by the matrices [E, in, out] of their experts."""
        if len(self.experts) == 1:
            return rows @ matrices[self.experts[0]]
        first, last = self.experts
        product = torch.bmm(rows.view(2, -1, rows.shape[1]), matrices[first : last + 1 : last - first])
        return product.view(len(rows), -1)

    def each(self, *rows: Tensor) -> Iterator[tuple[int, slice, list[Tensor]]]:
        """Each expert, where its rows are among all, and its own of each of these filled ones."""
        for first, expert, part in zip(itertools.count(step=self.most), self.experts, self.parts):
            yield expert, part, [filled[first : first + _count(part)] for filled in rows]


def turns(ends: Sequence[int], *, by_two: bool) -> list[Turn]:
    """Of experts whose rows end there; in order of their first expert, and one that has no rows is alone."""
    parts = [slice(first, last) for first, last in itertools.pairwise((0, *ends))]
    waiting = deque(sorted(range(len(parts)), key=lambda expert: _count(parts[expert])))
    found = []
    while waiting:
        these = [waiting.popleft()]
        if by_two and waiting and _fit(parts[these[0]], parts[waiting[0]]):
            these.append(waiting.popleft())
        these.sort()
        found.append(Turn(tuple(these), tuple(parts[expert] for expert in these)))
    return sorted(found, key=lambda turn: turn.experts)


def faster_by_two(x: Tensor) -> bool:
    """Whether batches of rows like these are products of MKL, of several threads."""
    fits = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    return fits and torch.backends.mkl.is_available() and torch.get_num_threads() > 1


def _fit(fewer: slice, more: slice) -> bool:
    few, many = _count(fewer), _count(more)
    return few > 0 and many <= _MOST_ROWS and 2 * many <= _MOST_FILLED * (few + many)


def _count(part: slice) -> int:
    count: int = part.stop - part.start
    return count

"""Which microbatches of the whole batch this rank runs, where data-parallel ranks take unequal shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from autopar.ir.program import DATA_AXIS, Program


@dataclass(frozen=True, kw_only=True)
class Share:
    """``counts``: microbatches of each data-parallel rank, () where all run ``even``; ``rank``: which of them this is.

    Microbatches are numbered over the whole batch, in the order of its rows: rank r takes the next ``counts[r]``.
    """

    counts: tuple[int, ...]
    rank: int
    even: int
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, program: Program, coordinate: Mapping[str, int], groups: Mapping[str, dist.ProcessGroup]) -> Share:
        unequal = bool(program.shares)
        return cls(
            counts=program.shares, rank=coordinate[DATA_AXIS] if unequal else 0, even=program.microbatches,
            group=groups[DATA_AXIS] if unequal else None,
        )  # fmt: skip

    @property
    def unequal(self) -> bool:
        return bool(self.counts)

    @property
    def count(self) -> int:
        """Microbatches that this rank runs."""
        return self.counts[self.rank] if self.counts else self.even

    @property
    def ahead(self) -> int:
        """The first microbatch, counted from the first of this rank's even part."""
        return sum(self.counts[: self.rank]) - self.rank * self.even if self.counts else 0

    def rows(self, extent: int) -> int:
        """Rows of this rank, of a batch of ``extent``. Requires: unequal shares."""
        return extent // sum(self.counts) * self.count

    def part(self, x: Tensor, dim: int) -> Tensor:
        """This rank's rows of a whole batch, in memory of its own. Requires: unequal shares."""
        size = x.shape[dim] // sum(self.counts)
        rows = x.narrow(dim, sum(self.counts[: self.rank]) * size, self.count * size)
        return rows.detach().clone(memory_format=torch.contiguous_format)

    def evened(self, x: Tensor, dim: int) -> Tensor:
        """The rows that this rank would have of equal shares, from those it has. A collective of unequal shares."""
        size = x.shape[dim] // self.count
        have, want = self._ranges(self.counts), self._ranges((self.even,) * len(self.counts))
        sent = [_common(have[self.rank], theirs) * size for theirs in want]
        came = [_common(theirs, want[self.rank]) * size for theirs in have]
        rows = x.movedim(dim, 0).contiguous()
        bits = rows.view(torch.uint8) if rows.dtype == torch.bool else rows
        got = bits.new_empty((self.even * size, *bits.shape[1:]))
        dist.all_to_all_single(got, bits, came, sent, group=self.group)
        return got.view(rows.dtype).movedim(0, dim)

    def summed(self, loss: Tensor) -> Tensor:
        """The loss of the whole batch from this rank's summand."""
        if self.unequal:
            loss = loss.detach().clone()
            dist.all_reduce(loss, group=self.group)
        return loss

    @staticmethod
    def _ranges(counts: tuple[int, ...]) -> list[range]:
        ends = [sum(counts[: rank + 1]) for rank in range(len(counts))]
        return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]


def _common(first: range, second: range) -> int:
    return max(0, min(first.stop, second.stop) - max(first.start, second.start))

"""All experts at once, by ``torch.nn.functional.grouped_mm``.

For bf16 on GPUs, where it is one kernel, but for products so long that one after the other is faster; and on CPUs,
where it is a loop in C++, for so few rows that one in Python would take longer, but for products that are faster turned
and for memory that is used again. Of a GPU no more is read back than where the rows of long products end, so there is a
row for every choice, those of experts that are elsewhere last. What stands in their rows is undefined, NaN perhaps,
until rows become tokens and weights again: there they are 0.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from autopar.runtime import pages
from autopar.runtime.gates import Gated

_ALIGNMENT = 16  # bytes; torch refuses other addresses and strides
_LEAST_CAPABILITY = (8, 0)
# Of what the first projection gives, for each expert: below, a turn in Python takes longer than its arithmetic.
_FEW_BYTES = 128 * 1024
# Of an expert. On CPUs so few rows times a transposed matrix take 1.2 to 3 times as long as the matrix times them
# (MKL, float32, widths of 256 to 2048).
_FEW_ROWS = 5
# Of a product on a GPU: starting one costs 10 to 40 microseconds of the host's time.
_LONG_FLOPS = 1e11
# Added to weights of choices by which gradients are multiplied and divided: below the last digit of all but 0. To
# multiply the narrow rows, not the wide ones after their product, saves a GPU 2 % of a mixture's step.
_NEXT_TO_0 = 1e-20


def usable(x: Tensor, choices: int, up: Tensor, down: Tensor) -> bool:
    """Whether this is the faster way for ``choices`` rows, and torch can do it; there may be none after an exchange."""
    if x.is_cuda:
        fast = x.dtype == torch.bfloat16 and _capability(x.device) >= _LEAST_CAPABILITY
    else:
        few = choices * _numel(up) // x.shape[1] * x.element_size() <= len(up) * _FEW_BYTES
        fast = x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16) and few
    return fast and choices > 0 and x.dtype == up.dtype == down.dtype and aligned(x, up, down)


def aligned(*operands: Tensor) -> bool:
    """Whether every matrix begins, and every row and column of it ends, at an address that the kernel takes."""
    for each in operands:
        if each.data_ptr() % _ALIGNMENT or not each.is_contiguous():
            return False
        size = each.element_size()
        for width in each.shape[1:]:
            if width * size % _ALIGNMENT:
                return False
    return True


def _is_large(experts: Tensor) -> bool:
    """Whether what is done with each expert's matrix takes longer than a turn in Python."""
    return _numel(experts) * experts.element_size() >= _FEW_BYTES


def _numel(experts: Tensor) -> int:
    """Of an expert's matrix, without an operation that takes it out."""
    return experts.shape[1] * experts.shape[2]


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


@dataclass(frozen=True)
class Rows:
    """``each``: K. ``order`` [T K]: which choice each row is. ``ends`` int32 [E].

    ``place`` [T K]: the row of each choice. ``token`` [T K]: whose row each is. ``absent`` [T K, 1]: whether the expert
    of each choice is elsewhere; None: all are here.
    """

    each: int
    order: Tensor
    ends: Tensor
    place: Tensor
    token: Tensor
    absent: Tensor | None = None

    @classmethod
    def of(cls, order: Tensor, ends: Tensor, *, each: int, complete: bool) -> Rows:
        place = torch.empty_like(order).index_copy_(0, order, torch.arange(order.shape[0], device=order.device))
        token = order.div(each, rounding_mode="floor")
        absent = None if complete else (place >= ends[-1]).unsqueeze(-1)
        return cls(each, order, ends, place, token, absent)

    @property
    def places(self) -> list[Tensor]:
        """All but ``each``, for a backward pass to go on from."""
        found = [self.order, self.ends, self.place, self.token]
        return found if self.absent is None else [*found, self.absent]

    @cached_property
    def expert(self) -> Tensor:
        """[T K]: of each row, E for those elsewhere."""
        numbers = torch.arange(len(self.order), device=self.order.device, dtype=self.ends.dtype)
        return torch.searchsorted(self.ends, numbers, right=True)

    def taken(self, tokens: Tensor) -> Tensor:
        """[T, a] -> [T K, a]: the token of each row."""
        return tokens.index_select(0, self.token)

    def product(self, rows: Tensor, weights: Tensor) -> Tensor:
        """[T K, a] and [E, a, b] -> [T K, b]."""
        if self._apart(weights):
            return self._one_by_one(rows, weights)
        few = not _on_gpu(rows) and rows.shape[0] <= _FEW_ROWS * weights.shape[0] and _is_large(weights)
        if rows.dtype != torch.float32 or weights.mT.stride(-1) != 1 or not few:
            return F.grouped_mm(rows, weights, offs=self.ends)
        made = rows.new_empty(len(rows), weights.shape[2])
        for weight, here in zip(weights, self._of_each, strict=True):
            turned = here.stop - here.start <= _FEW_ROWS
            made[here] = (weight.mT @ rows[here].mT).mT if turned else rows[here] @ weight
        return made

    def _apart(self, weights: Tensor) -> bool:
        """Whether the mean product takes a GPU so long that one after the other, by cuBLAS, is faster."""
        return _on_gpu(weights) and 2 * self.order.shape[0] * _numel(weights) >= _LONG_FLOPS * weights.shape[0]

    def _one_by_one(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Rows of experts that are elsewhere become 0."""
        made = rows.new_empty(len(rows), weights.shape[2])
        for weight, here in zip(weights, self._of_each, strict=True):
            torch.mm(rows[here], weight, out=made[here])
        made[self._of_each[-1].stop :] = 0
        return made

    def outer(self, left: Tensor, right: Tensor, like: Tensor) -> Tensor:
        """[T K, a] and [T K, b] -> [E, a, b] as ``like``: the sum over each expert's rows.

        Expert by expert where that is faster, and where its memory was used before: ``grouped_mm`` would have it
        mapped anew.
        """
        again = not _on_gpu(like) and pages.pooled(like) and _is_large(like)
        if not (again or self._apart(like)):
            return F.grouped_mm(left.mT, right, offs=self.ends)
        sums = pages.empty_like(like)
        for total, here in zip(sums, self._of_each, strict=True):
            torch.mm(left[here].mT, right[here], out=total)
        return sums

    @cached_property
    def _of_each(self) -> list[slice]:
        """The rows of each expert. Waits for a GPU."""
        return [slice(first, last) for first, last in itertools.pairwise((0, *self.ends.tolist()))]

    def of_choices(self, rows: Tensor, of: Tensor) -> Tensor:
        """[T K, a] -> [T, K, a], 0 where the expert is elsewhere. ``of``: the weights of the product that gave them."""
        found = rows.index_select(0, self.place)
        if self.absent is not None and not self._apart(of):  # else 0 already
            found.masked_fill_(self.absent, 0)
        return found.view(-1, self.each, rows.shape[-1])


def forward(
    x: Tensor, weight: Tensor, rows: Rows, up: Tensor, down: Tensor, up_bias: Tensor | None, gate: Gated
) -> tuple[Tensor, Tensor]:
    """The result [T, H] and what the first projection gave [T K, c I].

    ``weight`` [T, K]; ``up`` [E, H, c I] and ``down`` [E, I, H]: as rows are multiplied by them.
    """
    inner = rows.product(rows.taken(x), up)
    if up_bias is not None:
        inner += F.pad(up_bias, (0, 0, 0, 1)).index_select(0, rows.expert)
    made = rows.of_choices(rows.product(gate.forward(inner, rows.token), down), down)
    return (made * weight.unsqueeze(-1)).sum(1).to(x.dtype), inner


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, rows: Rows, matrices: tuple[Tensor, Tensor], back: tuple[Tensor, Tensor],
    inner: Tensor, gate: Gated, *, transposed: bool, wants: tuple[bool, bool, bool],
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of x, weight, up, down and up_bias as they are stored; ``wants``: which of the last three.

    ``matrices``: up and down as ``forward`` has them, ``back``: turned.
    """
    (up, down), (up_back, down_back) = matrices, back
    share = weight.reshape(-1, 1).index_select(0, rows.order).add_(_NEXT_TO_0)
    given = rows.taken(grad).mul_(share)
    middle, inwards = gate.and_backward(inner, rows.token)
    of_middle = rows.product(given, down_back)
    shared = (of_middle * middle).sum(-1, keepdim=True, dtype=weight.dtype)
    of_weight = rows.of_choices(shared.div_(share), down).squeeze(-1)
    pairs = ((rows.taken(x), of_inner := inwards(of_middle)), (middle, given))
    of_up, of_down = (
        rows.outer(*(pair if transposed else pair[::-1]), like) if wanted else None
        for wanted, pair, like in zip(wants[:2], pairs, matrices if transposed else back, strict=True)
    )
    of_bias = None
    if wants[2]:
        sums = of_inner.new_zeros(len(rows.ends) + 1, of_inner.shape[1])
        of_bias = sums.index_put_((rows.expert,), of_inner, accumulate=True)[:-1]
    of_x = rows.of_choices(rows.product(of_inner, up_back), up).sum(1)
    return of_x, of_weight, of_up, of_down, of_bias

"""Operations that are measured, with the work and the traffic that the cost model counts of each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from autopar.cost_model.priced import work
from autopar.ir.optable import TABLE
from autopar.runtime.autopar_ops import FUNCTIONS
from autopar.runtime.dtypes import IR_DTYPES

ATTENTION = "aten.scaled_dot_product_attention.default"
WIDTH = 1024  # of the rows that are normalized, summed or attended to
CLASSES = 8192
COLD_BYTES = 2**26  # more than caches hold
HEADS, HEAD = 8, 64  # of attention


@dataclass(frozen=True, kw_only=True)
class Work:
    """Of one call in so many ``passes``: forward, and backward where it has one."""

    flops: int
    bytes: int
    passes: int


@dataclass(frozen=True, kw_only=True)
class Probe:
    """``call`` on ``operands``."""

    target: str
    call: Callable[..., Tensor]
    operands: tuple[Tensor, ...]

    def work(self, flops: int = 0) -> Work:
        """What the cost model counts: ``flops`` forward, and bytes of operands and result."""
        entry = TABLE[self.target]
        tensors = [(tuple(each.shape), IR_DTYPES[each.dtype]) for each in (*self.operands, self.run())]
        trained = [each.requires_grad for each in self.operands if each.is_floating_point()]
        forward, backward = work(self.target, entry, flops, tensors, 0, trained)
        both = [cost for cost in (forward, backward) if cost is not None and (cost is forward or cost.bytes)]
        return Work(flops=sum(cost.flops for cost in both), bytes=sum(cost.bytes for cost in both), passes=len(both))

    def run(self) -> Tensor:
        return self.call(*self.operands)

    def step(self) -> Callable[[], object]:
        """Forward and, if it has one, backward."""
        trained = [each for each in self.operands if each.requires_grad]
        if self.work().passes == 1:
            return self.run
        ahead = torch.ones_like(self.run())
        return lambda: torch.autograd.grad(self.run(), trained, ahead)


Maker: TypeAlias = Callable[[int, torch.dtype, torch.device], Probe]


def _rows(n: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.rand(max(1, n // width), width, dtype=dtype, device=device).add_(0.5).requires_grad_()


def _alike(target: str, call: Callable[..., Tensor], operands: int = 1) -> tuple[str, Maker]:
    """Of tensors of ``n`` elements each."""
    def make(n: int, dtype: torch.dtype, device: torch.device) -> Probe:
        given = tuple(_rows(n, WIDTH, dtype, device) for _ in range(operands))
        return Probe(target=target, call=call, operands=given)

    return target, make


def _normed(target: str, call: Callable[..., Tensor], weights: int) -> tuple[str, Maker]:
    def make(n: int, dtype: torch.dtype, device: torch.device) -> Probe:
        weighted = tuple(torch.ones(WIDTH, dtype=dtype, device=device, requires_grad=True) for _ in range(weights))
        return Probe(target=target, call=call, operands=(_rows(n, WIDTH, dtype, device), *weighted))

    return target, make


def _cross_entropy(n: int, dtype: torch.dtype, device: torch.device) -> Probe:
    logits = _rows(n, CLASSES, dtype, device)
    target = torch.arange(len(logits), device=device) % CLASSES
    top = logits.detach().amax(-1)
    stats: Callable[..., Tensor] = FUNCTIONS["cross_entropy_stats"]
    return Probe(
        target="autopar.cross_entropy_stats", call=lambda *given: stats(*given, dtype=torch.float32),
        operands=(logits, target, top),
    )  # fmt: skip


# What most of the time of models goes to that is no product; the rest is priced by what is copied.
MOVED: dict[str, Maker] = dict([
    _alike("aten.add.Tensor", torch.add, 2), _alike("aten.mul.Tensor", torch.mul, 2),
    _alike("aten.div.Tensor", torch.div, 2), _alike("aten.neg.default", torch.neg),
    _alike("aten.gelu.default", F.gelu), _alike("aten.silu.default", F.silu), _alike("aten.relu.default", torch.relu),
    _alike("aten.tanh.default", torch.tanh), _alike("aten.sigmoid.default", torch.sigmoid),
    _alike("aten.rsqrt.default", torch.rsqrt), _alike("aten.pow.Tensor_Scalar", lambda x: torch.pow(x, 3.0)),
    _alike("aten.softmax.int", lambda x: torch.softmax(x, -1)),
    _alike("aten.sum.dim_IntList", lambda x: torch.sum(x, -1)),
    _normed("aten.layer_norm.default", lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b), 2),
    _normed("aten.rms_norm.default", lambda x, w: F.rms_norm(x, (WIDTH,), w), 1),
    ("autopar.cross_entropy_stats", _cross_entropy),
])  # fmt: skip


def product(n: int, dtype: torch.dtype, device: torch.device) -> tuple[Callable[[], object], int]:
    """A square matrix product and its flops, of other operands each time: in training none is in a cache."""
    pairs = max(1, COLD_BYTES // (2 * n**2 * dtype.itemsize))
    drawn = itertools.cycle([
        (torch.rand(n, n, dtype=dtype, device=device), torch.rand(n, n, dtype=dtype, device=device))
        for _ in range(pairs)
    ])  # fmt: skip
    return lambda: torch.mm(*next(drawn)), 2 * n**3


def attention(rows: int, dtype: torch.dtype, device: torch.device) -> tuple[Callable[[], object], Work]:
    """Causal attention of one sequence, forward and backward, and the flops that are counted of it: of all pairs."""
    q, k, v = (torch.rand(1, HEADS, rows, HEAD, dtype=dtype, device=device, requires_grad=True) for _ in range(3))
    causal = partial(F.scaled_dot_product_attention, is_causal=True)
    probe = Probe(target=ATTENTION, call=causal, operands=(q, k, v))
    return probe.step(), probe.work(4 * HEADS * rows**2 * HEAD)


def mixed(numel: int, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    """A product whose operands differ in shape."""
    rows = _rows(numel, WIDTH, dtype, device).detach()
    return lambda: torch.mul(rows, rows[:, :1])


def copied(size_bytes: int, device: torch.device) -> Callable[[], object]:
    """A copy of so many bytes."""
    source = torch.ones(size_bytes // 4, dtype=torch.float32, device=device)
    to = torch.empty_like(source)
    return lambda: to.copy_(source)


def ladder(first: int, times: int, last: int) -> Iterator[int]:
    """Sizes, each ``times`` the one before."""
    while first <= last:
        yield first
        first *= times

"""Operations that draw random numbers, by the hash of ``random_words``.

``site`` numbers the draws after the first one of ``rng``; ``index`` says which part of the whole result
this device has (None: all of it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autopar.runtime.random_words import BITS, Index, below, seed_of, whole, words


def advance(rng: Tensor, *, by: int) -> Tensor:
    """The state ``by`` draws later."""
    return torch.stack((rng[0], rng[1], rng[2] + by, rng[3]))


def dropout(x: Tensor, rng: Tensor, *, p: float, site: int = 0, index: Index | None = None) -> Tensor:
    """``x`` with a share ``p`` of its elements set to 0, the others times 1 / (1 - p).

    Autograd keeps the mask, one byte an element.
    """
    kept = below(rng, site, whole(x.shape) if index is None else index, x.device, 1.0 - p)
    return x * kept * (1.0 / (1.0 - p) if p < 1 else 0.0)


def uniform(
    rng: Tensor, *, shape: Sequence[int] = (), site: int = 0, index: Index | None = None,
    dtype: torch.dtype, device: torch.device,
) -> Tensor:  # fmt: skip
    """Numbers between 0 and 1, neither of them included: the middles of 2^23 (f64: 2^52) equal parts."""
    return _uniform(rng, site, whole(shape) if index is None else index, dtype, device, 0)


def normal(
    rng: Tensor, *, shape: Sequence[int] = (), site: int = 0, index: Index | None = None,
    dtype: torch.dtype, device: torch.device,
) -> Tensor:  # fmt: skip
    """Numbers with mean 0 and variance 1, by the transform of Box and Muller."""
    place = whole(shape) if index is None else index
    radius = (_uniform(rng, site, place, dtype, device, 0).log() * -2).sqrt()
    return radius * (_uniform(rng, site, place, dtype, device, 2) * (2 * math.pi)).cos()


def sdpa_dropout(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rng: Tensor, *,
    dropout_p: float, site: int = 0, index: Index | None = None, **how: Any,
) -> Tensor:  # fmt: skip
    """The fused attention, its dropout drawn by torch's generator from a seed of this draw and this part."""
    seed = seed_of(rng, site, whole(()) if index is None else index)
    devices = [q.device] if q.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, **how)


def _uniform(
    rng: Tensor, site: int, index: Index, dtype: torch.dtype, device: torch.device, lane: int
) -> Tensor:
    """Uses the words ``lane`` and ``lane + 1`` of the draw. Requires: ``dtype`` is f32 or f64."""
    high = words(rng, site, index, device, lane=lane)
    if dtype != torch.float64:
        return ((high >> (BITS - 23)).to(dtype) + 0.5) * 2.0**-23
    low = words(rng, site, index, device, lane=lane + 1)
    return ((high << 20 | low >> (BITS - 20)).to(dtype) + 0.5) * 2.0**-52


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "advance": advance,
    "dropout": dropout,
    "uniform": uniform,
    "normal": normal,
    "sdpa_dropout": sdpa_dropout,
}

"""Random bits as a function of where they stand: no state, no sequence, the same for every plan.

    word = hash(seed, step, draw, global index of the element)

``rng`` is an int64 tensor of four numbers: two words of 32 bits made of seed and step, the number of the
first draw, and the microbatch that runs. It is an argument of every operation that draws, so that a
recomputed forward pass, or a backward pass in another order, draws again what it drew.

All arithmetic is on 32-bit words held in int64, with factors below 2^31, so that no product overflows and
every device computes the same bits. The two rounds of mixing are those of a 32-bit integer hash with
little bias (github.com/skeeto/hash-prospector); the index of the row enters both, as 2 · 32 bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

# How one dim of a device's part lies in the whole: factors (size, place), major first. ``place`` is None where
# the device has all of the factor, else its index of it, or "mb": the microbatch that runs.
Dim: TypeAlias = "Sequence[tuple[int, int | str | None]]"
Index: TypeAlias = Sequence[Dim]

BITS = 32
_MASK = (1 << BITS) - 1
_SPREAD, _FIRST, _SECOND = 0x5E3779B1, 0x21F0AAAD, 0x735A2D97  # odd and below 2^31
_CHUNK = 1 << 22  # elements whose words are held at a time: 64 MB
LANES = 4


def rng_state(seed: int, step: int, microbatch: int = 0) -> Tensor:
    """The ``rng`` of one microbatch of one step."""
    digest = hashlib.sha256(f"{seed}/{step}".encode()).digest()
    words = (int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little"))
    return torch.tensor([*words, 0, microbatch], dtype=torch.int64)


def at_microbatch(rng: Tensor, microbatch: int) -> Tensor:
    """The same draws for another microbatch."""
    return torch.cat((rng[:3], rng.new_tensor([microbatch])))


def whole(shape: Sequence[int]) -> Index:
    """The index of a device that has everything."""
    return tuple(((size, None),) for size in shape)


def local_shape(index: Index) -> tuple[int, ...]:
    shape = []
    for dim in index:
        extent = 1
        for size, place in dim:
            extent *= size if place is None else 1
        shape.append(extent)
    return tuple(shape)


def words(rng: Tensor, draw: int, index: Index, device: torch.device, *, lane: int = 0) -> Tensor:
    """Uniform numbers in [0, 2^32) for the elements of this device's part, int64 in its shape.

    ``draw``: number of the draw after ``rng``'s first; ``lane`` < 4: independent words of one draw.
    """
    first, second, columns = _rows(rng, draw, lane, index, device)
    found = _mixed(first, second, columns)
    found ^= found >> 15
    return found.view(local_shape(index))


def below(rng: Tensor, draw: int, index: Index, device: torch.device, share: float) -> Tensor:
    """Bool in this device's part's shape: true with probability ``share``, to 2^-32."""
    first, second, columns = _rows(rng, draw, 0, index, device)
    limit = round(share * (1 << BITS))
    rows = first.numel()
    at_once = rows if torch.compiler.is_compiling() else max(1, _CHUNK // max(1, columns.numel()))
    if at_once >= rows:
        found = _mixed(first, second, columns) < limit
    else:  # nothing of eight bytes an element is ever held whole
        found = torch.empty((rows, columns.numel()), dtype=torch.bool, device=device)
        for at in range(0, rows, at_once):
            part = slice(at, at + at_once)
            torch.lt(_mixed(first[part], second[part], columns), limit, out=found[part])
    return found.view(local_shape(index))


def seed_of(rng: Tensor, draw: int, index: Index) -> int:
    """A seed for a generator of torch's: another one for every draw, microbatch and part."""
    places = [place for dim in index for _, place in dim if place is not None]
    digest = hashlib.sha256(f"{rng.tolist()}/{draw}/{places}".encode()).digest()
    return int.from_bytes(digest[:7], "little")


def _rows(
    rng: Tensor, draw: int, lane: int, index: Index, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Two words for each row (all dims but the last) and the place of each column, spread over 32 bits."""
    *leading, last = index or (((1, None),),)
    row = torch.zeros(1, dtype=torch.int64, device=device)
    for dim in leading:
        extent = 1
        for size, _ in dim:
            extent *= size
        row = (row.unsqueeze(-1) * extent + _coordinates(dim, rng, device)).flatten()
    number = (rng[2] + draw) * LANES + lane
    key = _hash((rng[0] + number * _SPREAD) & _MASK)
    other = _hash(rng[1] ^ key)
    first = _hash((_hash((row & _MASK) ^ key) + (row >> BITS)) & _MASK)
    second = _hash((first + other) & _MASK)
    columns = (_coordinates(last, rng, device) * _SPREAD) & _MASK
    return first, second, columns


def _coordinates(dim: Dim, rng: Tensor, device: torch.device) -> Tensor:
    """Global index of each element of a device's part of one dim."""
    found = torch.zeros(1, dtype=torch.int64, device=device)
    for size, place in dim:
        if place is None:
            found = (found.unsqueeze(-1) * size + torch.arange(size, device=device)).flatten()
        elif isinstance(place, int):
            found = found * size + place
        else:
            found = found * size + rng[3]
    return found


def _mixed(first: Tensor, second: Tensor, columns: Tensor) -> Tensor:
    """Words of [row, column], well mixed in their upper half, which is what a comparison looks at."""
    x = first.unsqueeze(-1) + columns
    x ^= x >> 16
    x *= _FIRST
    x += second.unsqueeze(-1)
    x &= _MASK
    x ^= x >> 15
    x *= _SECOND
    x &= _MASK
    return x


def _hash(x: Tensor) -> Tensor:
    """A bijection of 32-bit words in which every bit depends on every other."""
    x = x ^ (x >> 16)
    x = (x * _FIRST) & _MASK
    x = x ^ (x >> 15)
    x = (x * _SECOND) & _MASK
    return x ^ (x >> 15)

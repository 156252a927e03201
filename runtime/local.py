"""Moving factors of a tensor's dims on one device: the local half of every conversion.

A dim is viewed as ``outer · k · rest``. Taking index i of the k is a slice; bringing k to the front makes
the pieces that a collective sends; placing a gathered k back is the inverse. Where k does not divide the dim, its
``extent`` is given (0: it does): zeros are added behind it before it is cut, and taken off after placing.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def fill(x: Tensor, dim: int, extent: int) -> Tensor:
    """Zeros behind the end of ``dim``, up to ``extent``."""
    missing = extent - x.shape[dim]
    return F.pad(x, (*(0, 0) * (x.dim() - dim - 1), 0, missing)) if missing else x


def take(x: Tensor, dim: int, outer: int, k: int, index: int, extent: int = 0) -> Tensor:
    """Index ``index`` of the factor k of ``dim`` = outer · k · rest."""
    x = fill(x, dim, -(-extent // k) * k) if extent else x
    if outer == 1:
        size = x.shape[dim] // k
        return x.narrow(dim, index * size, size)
    part: Tensor = x.unflatten(dim, (outer, k, -1)).select(dim + 1, index).flatten(dim, dim + 1)
    return part


def to_front(x: Tensor, dim: int, outer: int, k: int, extent: int = 0) -> Tensor:
    """Contiguous [k, *local]: piece i is ``take(x, dim, outer, k, i)``."""
    x = fill(x, dim, -(-extent // k) * k) if extent else x
    pieces: Tensor = x.unflatten(dim, (outer, k, -1)).movedim(dim + 1, 0)
    pieces = pieces.flatten(dim + 1, dim + 2)
    return pieces.contiguous()


def place(pieces: Tensor, dim: int, outer: int, extent: int = 0) -> Tensor:
    """Inverse of ``to_front``: the leading k becomes the factor of ``dim`` behind ``outer``."""
    joined: Tensor = pieces.unflatten(dim + 1, (outer, -1)).movedim(0, dim + 1).flatten(dim, dim + 2)
    return joined.narrow(dim, 0, extent) if extent else joined

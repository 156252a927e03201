"""What of a checkpoint a rank takes, by name, and whether it is what the rank holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from autopar.ir.errors import MismatchError
from autopar.runtime.restart import listed


def held_by_name(
    held: Mapping[str, Tensor], there: Collection[str], elsewhere: Iterable[str], where: object
) -> dict[str, Tensor]:
    """Tensors of this rank by a name that the checkpoint has; of two names of one tensor the first.

    ``elsewhere``: names that other ranks hold. Raises MismatchError for what is missing, and for what is not the
    model's.
    """
    by_tensor: dict[int, str] = {}
    for name, tensor in held.items():
        if name in there:
            by_tensor.setdefault(id(tensor), name)
    missing = [name for name, tensor in held.items() if id(tensor) not in by_tensor]
    others = frozenset(elsewhere)
    unexpected = [name for name in there if name not in held and name not in others]
    if missing or unexpected:
        raise MismatchError(
            f"{where} is not of this model: missing {listed(missing)}; unexpected {listed(unexpected)}"
        )
    return {name: held[name] for name in by_tensor.values()}


def same_kind(name: str, shape: Sequence[int], dtype: torch.dtype, held: Tensor, where: object) -> None:
    """Raise MismatchError where shapes differ, or one has whole numbers and the other has not."""
    if list(shape) != list(held.shape):
        raise MismatchError(f"{name} has shape {list(shape)} in {where}, {list(held.shape)} in the model")
    if dtype != held.dtype and not (dtype.is_floating_point and held.dtype.is_floating_point):
        raise MismatchError(f"{name} is {dtype} in {where}, {held.dtype} in the model")

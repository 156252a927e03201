"""Weights as Hugging Face's ``save_pretrained`` leaves them: each rank reads what its own parts are made of.

Files may name and cut tensors otherwise than the model does: experts one by one where the model has them in one
tensor, say. What the model's tensors are made of is its library's to tell (``Origin``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor

from autopar.ir.errors import MismatchError
from autopar.runtime.checkpoint_folder import Folder
from autopar.runtime.held import held_by_name, same_kind
from autopar.runtime.module import ParallelModule
from autopar.runtime.origins import Origin
from autopar.runtime.restart import bounds, cut

BATCH_BYTES = 2**30  # so much is read at once to be put together, or one tensor's parts if they are more


class Published:
    """What a rank takes of published weights. Making one checks that they fit.

    Raises FileFormatError where they cannot be read, MismatchError where they are not this model's.
    """

    def __init__(self, folder: Folder, model: ParallelModule) -> None:
        self._folder, kept = folder, folder.metadata().state_dict_metadata
        self._files = {
            name: torch.empty(one.size, dtype=one.properties.dtype, device="meta")
            for name, one in kept.items() if isinstance(one, TensorStorageMetadata)
        }  # fmt: skip
        origins = model._origins(self._files)
        there = {name for origin in origins for name in origin.names}
        held = model.state_dict(keep_vars=True)
        self._held = held_by_name(held, sorted(there), model._elsewhere, folder.path)
        self._origins = [origin for origin in origins if not self._held.keys().isdisjoint(origin.names)]
        for origin in self._origins:
            for name, whole in self._made(origin).items():
                if name in self._held:
                    same_kind(name, whole.shape, whole.dtype, self._held[name], folder.path)

    def take(self) -> None:
        """Load them, a few at a time."""
        plain = [origin for origin in self._origins if origin.make is None]
        self._folder.read({origin.needed(None)[0]: self._held[origin.names[0]].detach() for origin in plain})
        for batch in self._batches([origin for origin in self._origins if origin.make is not None]):
            names = [name for origin in batch for name in self._needed(origin)]
            tensors = {name: torch.empty_like(self._files[name], device="cpu") for name in names}
            self._folder.read(tensors)
            for origin in batch:
                self._put(origin, origin.made(tensors, self._rows(origin)))

    def _made(self, origin: Origin) -> Mapping[str, Tensor]:
        try:
            made = origin.made(self._files)
        except Exception as error:  # noqa: BLE001 — the library's own, of any kind
            first = origin.needed(None)[0]
            raise MismatchError(
                f"{origin.names[0]} cannot be made of {first} and what belongs to it in {self._folder.path}: {error}"
            ) from None
        return made

    def _rows(self, origin: Origin) -> range | None:
        """Of the sources those whose rows this rank has; None: all."""
        held = [self._held[name] for name in origin.names if name in self._held]
        if not origin.by_row or any(not isinstance(tensor, DTensor) for tensor in held):
            return None
        spans = {bounds(tensor.shape, tensor)[0] for tensor in held if isinstance(tensor, DTensor)}
        if len(spans) > 1:
            return None
        [(start, size)] = spans
        return range(start, start + size) if size else None

    def _needed(self, origin: Origin) -> list[str]:
        return origin.needed(self._rows(origin))

    def _batches(self, origins: Sequence[Origin]) -> Iterator[list[Origin]]:
        batch: list[Origin] = []
        room = BATCH_BYTES
        for origin in origins:
            size = sum(self._files[name].nbytes for name in self._needed(origin))
            if batch and size > room:
                yield batch
                batch, room = [], BATCH_BYTES
            batch.append(origin)
            room -= size
        if batch:
            yield batch

    def _put(self, origin: Origin, made: Mapping[str, Tensor]) -> None:
        rows = self._rows(origin)
        for name, tensor in made.items():
            mine = self._held.get(name)
            if mine is None:
                continue
            mine = mine.detach()
            if not isinstance(mine, DTensor):
                mine.copy_(tensor)
                continue
            mine.to_local().copy_(cut(tensor, mine, first=0 if rows is None else 1))

"""One model of the zoo: an unmodified transformers model of its published size, on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autopar.ir.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

Inputs = dict[str, "Tensor"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model by name; ``make(layers)`` makes it on meta.

    ``batch_size`` and ``seq_len`` are what ``build`` takes where nothing is given, ``longest`` is the most
    positions that the model can tell apart. ``inputs`` are the names of its [batch, sequence] inputs.
    """

    name: str
    layers: int
    batch_size: int
    seq_len: int
    longest: int
    inputs: tuple[str, ...]
    make: Callable[[int], nn.Module]

    def build(
        self, *, batch_size: int | None = None, seq_len: int | None = None, layers: int | None = None
    ) -> tuple[nn.Module, Inputs]:
        """The model and int64 example inputs of the global batch, all on meta.

        Raises ``UsageError`` for a size below 1 or a sequence longer than the model has positions.
        """
        sizes = {
            "batch-size": self.batch_size if batch_size is None else batch_size,
            "seq-len": self.seq_len if seq_len is None else seq_len,
            "layers": self.layers if layers is None else layers,
        }
        check_sizes(self.name, sizes, longest=self.longest)
        return self.make(sizes["layers"]), token_inputs(self.inputs, sizes["batch-size"], sizes["seq-len"])


def check_sizes(name: str, sizes: dict[str, int], *, longest: int | None) -> None:
    """Raise ``UsageError`` naming the first size that the model ``name`` cannot have."""
    for option, size in sizes.items():
        if size < 1:
            raise UsageError(f"{name}: --{option} is {size}; it must be 1 or more")
    seq_len = sizes["seq-len"]
    if longest is not None and seq_len > longest:
        raise UsageError(
            f"{name}: --seq-len is {seq_len}, but the model has {longest} positions; give {longest} or less",
            details={"model": name, "seq_len": seq_len, "longest": longest},
        )


def token_inputs(names: tuple[str, ...], batch_size: int, seq_len: int) -> Inputs:
    """An int64 tensor [batch_size, seq_len] on meta for each name."""
    import torch

    return {name: torch.empty((batch_size, seq_len), dtype=torch.int64, device="meta") for name in names}

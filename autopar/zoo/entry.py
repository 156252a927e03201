"""One model of the zoo: of its published size, on the meta device; most are unmodified transformers models."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autopar.ir.errors import UsageError
from autopar.zoo.architecture import Architecture
from autopar.zoo.kinds import Inputs, check_sizes
from autopar.zoo.reduce import set_layers

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model by name: the class and the configuration that it is built from, both in the module ``home``.

    ``batch_size`` and ``seq_len`` are what ``build`` takes where nothing is given; ``seq_len`` is None for models
    of pictures. ``longest`` is the most positions that the model can tell apart.
    """

    name: str
    model_class: str
    config_class: str
    config: Mapping[str, Any]
    batch_size: int
    kind: str
    seq_len: int | None = None
    longest: int | None = None
    home: str = "transformers"

    def architecture(self, layers: int | None = None) -> Architecture:
        """The model's class and configuration, of the published depth or of ``layers``."""
        home = importlib.import_module(self.home)
        config = getattr(home, self.config_class)(**self.config)
        if layers is not None:
            set_layers(config, self.name, layers)
        return Architecture(model_class=getattr(home, self.model_class), config=config, kind=self.kind)

    def build(
        self, *, batch_size: int | None = None, seq_len: int | None = None, layers: int | None = None
    ) -> tuple[nn.Module, Inputs]:
        """The model and example inputs of the global batch, all on meta.

        Raises ``UsageError`` for a size below 1, a sequence longer than the model has positions, or a sequence
        length for a model of pictures.
        """
        if seq_len is not None and self.seq_len is None:
            raise UsageError(f"{self.name}: a model of pictures has no sequence length; leave out --seq-len")
        batch_size = self.batch_size if batch_size is None else batch_size
        seq_len = self.seq_len if seq_len is None else seq_len
        sizes = {"batch-size": batch_size, "seq-len": seq_len, "layers": layers}
        check_sizes(self.name, {key: size for key, size in sizes.items() if size is not None}, longest=self.longest)
        made = self.architecture(layers)
        return made.build(), made.example(batch_size, seq_len or 0)

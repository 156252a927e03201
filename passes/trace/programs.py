"""The exported programs of one model: of one call or of two, with its repeated modules traced once or all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import nn
from torch.export import ExportedProgram

from autopar.passes.trace.delta_rule import delta_rules_as_one
from autopar.passes.trace.experts import experts_as_one
from autopar.passes.trace.experts_apart import experts_stacked
from autopar.passes.trace.export import FlatModel, Loss, Returned, export
from autopar.passes.trace.repeats import Repeats
from autopar.passes.trace.stand_in import StandIns, standing_in
from autopar.passes.trace.structure import Structure


class Programs:
    """``fakes``: stand-ins of the tensors of a call, whose structure is ``in_spec``."""

    def __init__(
        self, model: nn.Module, in_spec: Structure, loss_fn: Loss | None, stand_ins: StandIns,
        fakes: Sequence[torch.Tensor],
    ) -> None:  # fmt: skip
        self._model, self._loss_fn, self._stand_ins, self._fakes = model, loss_fn, stand_ins, fakes
        self._flat = FlatModel(model, in_spec, loss_fn)

    @property
    def returned(self) -> Returned:
        """What the call of the latest program returned and left."""
        return self._flat.returned

    def export(
        self, repeats: Repeats | None, *, twice: bool = False, left: Iterable[str] = ()
    ) -> ExportedProgram:
        """Raises as ``export.export`` does. ``left``: of which ``returned.unset`` is to tell."""
        self._flat.repeats, self._flat.twice = repeats, twice
        self._flat.returned = Returned(unset=dict.fromkeys(left))
        with (
            experts_as_one(self._model), experts_stacked(self._model), delta_rules_as_one(self._model),
            standing_in(self._model, self._stand_ins, self._loss_fn),
        ):  # fmt: skip
            return export(self._flat, self._fakes)

    def unset(self, repeats: Repeats | None, left: Collection[str]) -> Collection[str]:
        """What of ``left`` a call does not set before it reads it, or all of it where that cannot be told."""
        try:
            self.export(repeats, left=left)
        except Exception:  # noqa: BLE001 - it did not fail before; two calls will tell
            return left
        return self.returned.unset

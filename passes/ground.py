"""What all problems of one mesh share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autopar.passes.constrain import constrained
from autopar.passes.conversions import Conversions
from autopar.passes.partials import partial_axes
from autopar.passes.positions import Positions
from autopar.passes.pricing import Pricing
from autopar.passes.strategies import Strategy

if TYPE_CHECKING:
    from autopar.passes.build import Model


class Ground:
    """What all problems of one mesh share, whatever their modes: strategies and prices of conversions, made once."""

    def __init__(self, model: Model, found: Positions, pricing: Pricing) -> None:
        self.found, self.pricing = found, pricing
        self.conversions = Conversions(pricing)
        self.partial = partial_axes(model.graph, model.rules, found, pricing.mesh)
        self.constrained = constrained(model.graph, model.settings.constraints)
        self.legal: dict[tuple[str, str], tuple[Strategy, ...]] = {}

"""What the places of a pipeline hold and cost, for bounds of every cut: from its own problem, or from that of one in
fewer microbatches.

With as many times more of them each holds as many times less, and nothing takes less time: what says least of fewer
bounds what more take within their own memory. What each further one adds for sure, where parameters' gradients are
added up, is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from autopar.passes.bounds import Bounds
from autopar.passes.build import Encoded
from autopar.passes.ends import Ends, Handed, ends, handed
from autopar.passes.extents import layers
from autopar.passes.live import holding
from autopar.passes.pipelining import Shape, transfer_ns
from autopar.passes.pricing import Pricing
from autopar.passes.problem import Chain, FloatArray, Segment, Table
from autopar.passes.solve import Model, Places, apart, model_holding


@dataclass(eq=False)
class Staging:
    """Of one pipeline, ``shape``, whose stages are placed as ``encoded`` says."""

    bounds: Bounds
    encoded: Encoded
    pricing: Pricing
    shape: Shape
    known: dict[tuple[int, int], Model] = field(default_factory=dict)  # by what is held, and how much finer
    standing: dict[tuple[int, int], tuple[Segment, ...]] = field(default_factory=dict)  # by place, and what is held

    @cached_property
    def _anywhere(self) -> bool:
        """Whether stages may begin elsewhere than at calls."""
        return layers(self.bounds.model) < self.shape.stages

    @cached_property
    def _sizes(self) -> Handed:
        parts = self.bounds.cluster.world_size // self.shape.places * self.shape.microbatches
        return Handed(least=0) if self._anywhere else handed(self.bounds.model, self.encoded, parts)

    @cached_property
    def _loose(self) -> Encoded:
        """Costs no more, and is much smaller."""
        return Encoded(
            problem=apart(self.encoded.problem), variables=self.encoded.variables, calls=self.encoded.calls
        )

    @cached_property
    def _model(self) -> Model:
        """Holding one microbatch."""
        return Model(self._loose.problem, most_joined=self.bounds.most_joined)

    @cached_property
    def _further_ns(self) -> list[FloatArray]:
        """By chain, [mode]: what a call takes longer at least for a further microbatch."""
        segments = [chain.segment for chain in self.encoded.problem.chains]
        return [sum(map(Table.least_further_ns, segment.tables), np.zeros(1)) for segment in segments]

    def _holding(self, live: int, finer: int) -> Model:
        key = live, finer
        if key not in self.known:
            self.known[key] = model_holding(self._model, *key)
        return self.known[key]

    @cached_property
    def _own(self) -> Ends | None:
        return None if self._anywhere else ends(self.bounds.model, self.encoded)

    def _standing(self, own: Ends, place: int, live: int) -> tuple[Segment, ...]:
        """What stands at a place; the same object where it is asked for again, by which its costs are known."""
        key = place, live
        if key not in self.standing:
            self.standing[key] = own.of(place, self.shape.places, live)
        return self.standing[key]

    def places(self, runs: Sequence[range], counts: Sequence[int] = ()) -> list[Places]:
        """Of runs of neighbouring places what each holds and costs. ``counts``: multiples of its microbatches, least
        first, in any of which none holds or costs less."""
        few, most = (count // self.shape.microbatches for count in (counts[0], counts[-1])) if counts else (1, 1)
        shape = replace(self.shape, microbatches=self.shape.microbatches * most)
        arriving = self._sizes.least // most
        sent, *states = (
            2 * few * self.shape.microbatches * transfer_ns(size // few, self.pricing)
            for size in (self._sizes.least, *self._sizes.by_state)
        )
        own, found = self._own, list[Places]()
        longer = [(few - 1) * self.shape.microbatches * each for each in self._further_ns]
        for run in runs:
            live = max(1, int(shape.live(run[-1])))
            entering, leaving = (0 if run[0] == 0 else arriving), (0 if run[-1] == shape.places - 1 else arriving)
            found.append(Places(
                model=self._holding(live, most), count=len(run), longer=longer,
                chains=partial(_chains, self._loose, live), looped=shape.loops > 1,
                sent_ns=sent * (bool(entering) + bool(leaving)),
                sides=(bool(entering), bool(leaving)), handed=[state - sent for state in states],
                memory_bytes=self.bounds.memory_bytes - shape.received_bytes(run[-1], entering, leaving),
                own=() if own is None else self._standing(own, run[0], live if most == 1 else 0),
                anew=own is not None and 0 < run[0] < shape.places - 1 and len(set(own.again)) <= 2,
            ))  # fmt: skip
        return found


def _chains(encoded: Encoded, live: int) -> tuple[Chain, ...]:
    return holding(encoded, live).problem.chains

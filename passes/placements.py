"""Other placements of a call, for places of a pipeline that hold more or fewer microbatches than the solution's calls.

A solution places each call at one price of memory, in the mode that it has there. In another mode, or with more in
flight, another placement between the same layouts may be better: the best at several prices are worked out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from autopar.passes.build import Encoded
from autopar.passes.solve.choice import ENDS
from autopar.passes.solve.eliminate import Eliminator, Prices, assigned, holding
from autopar.passes.solve.plan import BYTES, SYNC
from autopar.passes.solve.states import fixed

# Prices that are tried, as parts of what a byte of a call is worth if all of its memory is worth all of its time.
WORTHS = (0.0, 1 / 64, 1 / 16, 1 / 4, 1.0, 16.0)


@dataclass(eq=False)
class Placements:
    """``full``: a problem with one microbatch saved. ``lives``: so many are in flight where the calls may be."""

    full: Encoded
    lives: tuple[int, ...]
    most_joined: float
    known: dict[tuple[int, ...], list[tuple[int, ...]]] = field(default_factory=dict)

    def like(self, number: int, values: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Values of calls of a chain that begin, end and share as this one does; what is not allowed may be among
        them."""
        chain = self.full.problem.chains[number]
        border = {variable: values[variable] for variable in (*chain.inputs, *chain.shared, *chain.outputs)}
        key = number, *border.values()
        if key not in self.known:
            self.known[key] = list(dict.fromkeys(self._best(number, border, values)))
        return self.known[key]

    def _best(self, number: int, border: dict[int, int], values: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """At each of the prices, in each mode (variable 0). With its ends decided a block is less entangled than it was
        for the solver."""
        segment = fixed(self.full.problem.chains[number].segment, border)
        one = Eliminator(segment, kept=(0,), most_joined=self.most_joined)
        own = np.array([0 if at in border else value for at, value in enumerate(values)], dtype=np.int64)[:, None]
        modes = np.arange(one.plan.domains[0], dtype=np.int64)[None]
        ends = list(border)
        for made in (holding(one, live) for live in self.lives):
            sums = made.plan.measure(own)[:, 0]
            worth = max(1.0, float(sums[SYNC])) / max(1.0, float(sums[BYTES]))
            prices = [
                Prices.along(mu, time=1.0, held=share * worth, transient=0.0)
                for share in WORTHS for mu in ENDS[: made.plan.reach + 1]
            ]  # fmt: skip
            for found in assigned(made, prices, modes):
                found[ends] = np.array(list(border.values()), dtype=np.int64)[:, None]
                yield from map(tuple, found.T.tolist())

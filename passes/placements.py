"""Other placements of a call, for places of a pipeline that hold more or fewer microbatches than the solution's calls.

A solution places each call at one price of memory, in the mode that it has there. In another mode, or with more in
flight, another placement between the same layouts may be better: the best at several prices are worked out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from autopar.passes.build import Encoded
from autopar.passes.solve import Model, between
from autopar.passes.solve.choice import ENDS
from autopar.passes.solve.eliminate import Prices
from autopar.passes.solve.plan import BYTES, SYNC

# Prices that are tried, as parts of what a byte of a call is worth if all of its memory is worth all of its time.
WORTHS = (0.0, 1 / 64, 1 / 16, 1 / 4, 1.0, 16.0)


@dataclass(eq=False)
class Placements:
    """``lean``, ``full``: a problem with nothing and with one microbatch saved. ``lives``: so many are in flight where
    the calls may be."""

    lean: Encoded
    full: Encoded
    lives: tuple[int, ...]
    most_joined: float
    known: dict[tuple[int, ...], list[tuple[int, ...]]] = field(default_factory=dict)

    @cached_property
    def _models(self) -> list[Model]:
        none, one = (Model(each.problem, most_joined=self.most_joined) for each in (self.lean, self.full))
        return [between(none, one, live) for live in self.lives]

    def like(self, number: int, values: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Values of calls of a chain that begin, end and share as this one does."""
        chain = self.full.problem.chains[number]
        border = number, *(values[variable] for variable in (*chain.inputs, *chain.shared, *chain.outputs))
        if border not in self.known:
            found = [each for model in self._models for each in _best(model, number, values)]
            self.known[border] = list(dict.fromkeys(found))
        return self.known[border]


def _best(model: Model, number: int, values: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The best at each of the prices, for each value of the block's pivot; what is not allowed may be among them."""
    chain, plan = model.chains[number], model.chains[number].eliminator.plan
    own = np.array(values, dtype=np.int64)[:, None]
    sums = plan.measure(own)[:, 0]
    worth = max(1.0, float(sums[SYNC])) / max(1.0, float(sums[BYTES]))
    kept = np.repeat(own[list(plan.kept)], chain.pivots, axis=1)
    if chain.pivot >= 0:
        kept[plan.kept.index(chain.pivot)] = np.arange(chain.pivots)
    found = []
    for share in WORTHS:
        for mu in ENDS[: plan.reach + 1]:
            run = chain.eliminator.run(Prices.along(mu, time=1.0, held=share * worth, transient=0.0))
            found += [tuple(each) for each in run.assign(kept).T.tolist()]
    return found

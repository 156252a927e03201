"""Problems with random prices: their optimal plans are placements that no sane price would choose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopar.passes.problem import FORBIDDEN, Problem, Segment


def shuffled(problem: Problem, seed: int) -> Problem:
    """The same variables, what is forbidden still forbidden, all prices drawn at random."""
    rng = np.random.default_rng(seed)

    def segment(old: Segment) -> Segment:
        tables = []
        for table in old.tables:
            prices = rng.integers(0, 1000, table.sync_ns.shape)
            sync = np.where(table.sync_ns >= FORBIDDEN, FORBIDDEN, prices).astype(np.int64)
            tables.append(replace(table, sync_ns=sync, hide_ns=None, cover_ns=None, bytes=None, transient_bytes=None))
        return replace(old, tables=tuple(tables))

    chains = tuple(replace(chain, segment=segment(chain.segment)) for chain in problem.chains)
    return Problem(root=segment(problem.root), chains=chains)

"""A problem for any number of microbatches held at once: memory is linear in it."""

from __future__ import annotations

from dataclasses import replace

from autopar.passes.build import Encoded
from autopar.passes.problem import Segment, Table


def holding(encoded: Encoded, live: int) -> Encoded:
    """``encoded``, which holds one microbatch, holding ``live`` of them."""
    if live == 1:
        return encoded
    problem = encoded.problem
    chains = tuple(replace(chain, segment=segment_holding(chain.segment, live)) for chain in problem.chains)
    return replace(encoded, problem=replace(problem, root=segment_holding(problem.root, live), chains=chains))


def segment_holding(segment: Segment, live: int) -> Segment:
    """A segment that holds one microbatch, holding ``live`` of them."""
    return replace(segment, tables=tuple(_table(table, live) for table in segment.tables))


def _table(table: Table, live: int) -> Table:
    if table.bytes is None or table.saved_bytes is None:
        return table
    return replace(table, bytes=table.bytes + (live - 1) * table.saved_bytes)

"""A problem for any number of microbatches held at once, from those of none and of one: memory is linear in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autopar.passes.build import Encoded
from autopar.passes.problem import Segment, Table


@dataclass(frozen=True, kw_only=True, eq=False)
class Live:
    """One problem, holding nothing of a microbatch (``none``) and all of one (``one``)."""

    none: Encoded
    one: Encoded

    def at(self, live: int) -> Encoded:
        """Holding so many."""
        if live == 1:
            return self.one
        problem = self.one.problem
        root = _at(self.none.problem.root, problem.root, live)
        chains = tuple(
            replace(one, segment=_at(none.segment, one.segment, live))
            for none, one in zip(self.none.problem.chains, problem.chains, strict=True)
        )
        return replace(self.one, problem=replace(problem, root=root, chains=chains))


def _at(none: Segment, one: Segment, live: int) -> Segment:
    return replace(one, tables=tuple(_table(a, b, live) for a, b in zip(none.tables, one.tables, strict=True)))


def _table(none: Table, one: Table, live: int) -> Table:
    if none.bytes is None or one.bytes is None:
        return one
    return replace(one, bytes=none.bytes + live * (one.bytes - none.bytes))

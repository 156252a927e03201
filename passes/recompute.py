"""Recomputation: how often a block's operations and conversions run forward in each mode, and what is kept.

``ir/recompute.py`` says what selective recomputation keeps of a lowered block; here it is priced before lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autopar.ir.convert import COLLECTIVES, Change
from autopar.ir.graph import Node
from autopar.ir.layout import Layout
from autopar.ir.program import MICROBATCH_AXIS
from autopar.ir.recompute import is_expensive
from autopar.passes.candidate import Mode
from autopar.passes.facts import Fact
from autopar.passes.pricing import local_bytes
from autopar.passes.problem import IntArray


def again(mode: Mode, node: Node) -> int:
    """How often the forward pass of an operation runs for each microbatch."""
    return 1 if mode.recompute == "none" or (mode.recompute == "selective" and is_expensive(node)) else 2


@dataclass(eq=False)
class Keeping:
    """Bytes that selective recomputation keeps of a value on its way to its consumers, each pair worked out once.

    ``changes``: from one layout to another, None where nothing leads there.
    """

    changes: Callable[[Fact, Layout, Layout], tuple[Change, ...] | None]
    known: dict[tuple[Fact, Layout, Layout], tuple[bool, int]] = field(default_factory=dict)

    def bytes(
        self, fact: Fact, have: Sequence[Layout], groups: Sequence[tuple[Layout, ...]], *, expensive: bool
    ) -> IntArray:
        """[have, group]: results of collectives, and the value itself if it is ``expensive`` and read as it is."""
        needs = list(dict.fromkeys(layout for group in groups for layout in group))
        pairs = np.array([[self._pair(fact, h, n) for n in needs] for h in have], dtype=np.int64)
        pairs = pairs.reshape(len(have), len(needs), 2)
        member = np.array([[need in group for group in groups] for need in needs], dtype=np.int64)
        member = member.reshape(len(needs), len(groups))
        kept: IntArray = pairs[:, :, 1] @ member
        if expensive:
            own = np.array([local_bytes(layout, fact.type) for layout in have], dtype=np.int64)
            kept = kept + own[:, None] * (pairs[:, :, 0] @ member > 0)
        return kept

    def _pair(self, fact: Fact, have: Layout, need: Layout) -> tuple[bool, int]:
        """Whether the value is read in the layout ``have``, and bytes of what collectives make of it."""
        key = (fact, have, need)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._walk(fact, have, need)
        return found

    def _walk(self, fact: Fact, have: Layout, need: Layout) -> tuple[bool, int]:
        steps = self.changes(fact, have, need) if have != need else ()
        if steps is None:
            return True, 0  # forbidden: it never counts
        sends = [step.kind in COLLECTIVES and step.axis != MICROBATCH_AXIS for step in steps]
        kept = sum(
            local_bytes(step.after, fact.type)
            for at, step in enumerate(steps) if sends[at] and not any(sends[at + 1 : at + 2])
        )  # fmt: skip
        return not (sends and sends[0]), kept

"""How a batch with fewer rows than planned is filled up, where that changes neither loss nor gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Padding:
    """``batch``: inputs whose dim 0 is the batch. ``labels``: those whose rows count for nothing where they hold this
    value, in every loss. ``refused``: why rows cannot be added; empty if they can.
    """

    batch: tuple[str, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""

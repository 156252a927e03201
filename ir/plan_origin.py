"""What a plan was made from and what was asked for, so that questions about it need the plan alone."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]


class Record(BaseModel):
    """Strict, frozen data: an unknown key, a wrong type, NaN or infinity is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Asked(Record):
    """What the user fixed; None left it to the search.

    ``memory_bytes``: of each device; None: what the cluster's devices have. ``batch_size``, ``seq_len`` and ``layers``
    are sizes that a MODEL of the command line was given.
    """

    mesh: dict[str, int] | None = None
    num_microbatches: Positive | None = None
    schedule: str | None = None
    zero: int | None = None
    recompute: str | None = None
    constraints: tuple[str, ...] = ()
    like: str | None = None
    memory_bytes: Positive | None = None
    batch_size: Positive | None = None
    seq_len: Positive | None = None
    layers: Positive | None = None


class Origin(Record):
    """The folded graph that was planned, as text (``ir/text.py``).

    ``sources``: where nodes come from in the user's model, by ``graph/value`` (a node's first result). ``loss``: which
    of the graph's outputs is the loss. ``parameters``: name → the element type that the graph computes with, followed
    by ``frozen`` or ``buffer`` where it is one.
    """

    graph: str
    sources: dict[str, str]
    loss: Annotated[int, Field(ge=0)]
    parameters: dict[str, str]

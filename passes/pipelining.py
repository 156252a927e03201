"""Where a pipeline is cut, and what it then costs.

A cut gives each stage a run of *units* (``units.py``): calls of blocks with what follows them. A step takes as
long as the slowest place of the pipeline needs for all microbatches, and a bubble besides:

    step = place · (1 + k · (places − 1) / microbatches)

where k is 1 for GPipe and 1F1B, 1 / (stages of a place) for interleaved 1F1B, and a third for zero-bubble schedules,
whose idle time is filled with the gradients of parameters. Costs that arise once a step (reductions, the optimizer)
are taken to be spread over the microbatches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autopar.cost_model import collective_s, neighbours
from autopar.ir.constraints import Constraint
from autopar.ir.errors import UsageError
from autopar.ir.pipeline import LOOPED, LOOPS, PIPELINE_AXIS, Mark
from autopar.passes.pricing import Pricing, nanoseconds

NEVER_NS = 1 << 62  # of what does not fit


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A pipeline's outer choices: ``places`` on the axis, ``loops`` stages at each place.

    ``equal``: whether all stages have equally many units.
    """

    schedule: str
    places: int
    loops: int
    microbatches: int
    equal: bool = False

    @property
    def stages(self) -> int:
        return self.places * self.loops

    @property
    def stretch(self) -> float:
        """Step time over the time of the slowest place alone."""
        share = {"interleaved": 1 / self.loops, "zero_bubble": 1 / 3}.get(self.schedule, 1.0)
        return 1 + share * (self.places - 1) / self.microbatches

    def live(self, stage: int) -> float:
        """Most microbatches whose activations one stage of a place holds at once; of a looped one on average."""
        place = stage % self.places
        if self.schedule == "gpipe":
            return self.microbatches
        if self.loops == 1 and self.schedule == "1f1b":
            return min(self.microbatches, self.places - place)
        # Megatron's order: so many forwards before the first backward, over all stages of the place.
        ahead = (self.loops - 1) * self.places + 2 * (self.places - 1 - place) + 1
        return min(self.microbatches, ahead / self.loops)

    def received_bytes(self, stage: int, entering: int, leaving: int) -> int:
        """What a stage has received and still needs, where so much goes into it and out of it with a microbatch: values
        of each that is in flight, their gradients on their way back, and the gradients that it works on."""
        return round(self.live(stage) * entering) + entering + leaving

    @property
    def most_live(self) -> int:
        """Microbatches that the first place holds, the most of all."""
        return math.ceil(self.live(0))

    @property
    def mean_live(self) -> int:
        """That stages hold on average."""
        return math.ceil(sum(map(self.live, range(self.stages))) / self.stages)


def rounds_of(schedule: str | None, places: int) -> int:
    """What must divide the number of microbatches under a schedule; 1F1B if none is named."""
    return places if schedule in LOOPED else 1


def shapes(
    schedule: str | None, places: int, counts: Sequence[int], *, strict: bool, equal: bool = False
) -> list[Shape]:
    """The pipelines that a schedule allows with these numbers of microbatches; 1F1B if none is named.

    Raises UsageError where there is none and ``strict``.
    """
    chosen = schedule or "1f1b"
    loops = LOOPS if chosen in LOOPED else 1
    found = [
        Shape(schedule=chosen, places=places, loops=loops, microbatches=count, equal=equal) for count in counts
        if count >= places and count % rounds_of(chosen, places) == 0
    ]  # fmt: skip
    if not found and strict:
        need = f"a multiple of {places}" if loops > 1 else f"{places} or more"
        raise UsageError(
            f"a pipeline of {places} stages under schedule {chosen!r} needs {need} microbatches; possible here: "
            f"{', '.join(map(str, counts))}. Give a larger batch, another num_microbatches or a smaller pp"
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What stands between two places where a stage may begin. ``entering``: bytes that come in from before.

    ``parameters``: whose first use it is. ``repeated_ns``: what each stage needs once, whichever of its units do, and
    computes for itself.
    """

    mark: Mark
    time_ns: int
    held_bytes: int
    saved_bytes: int
    transient_bytes: int
    entering_bytes: int
    parameters: tuple[str, ...] = ()
    repeated_ns: Mapping[tuple[str, bool], int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Where stages begin, and the pipeline's figures. ``bytes``: of each place on the pipeline axis."""

    marks: tuple[Mark, ...]
    objective_ns: int
    bubble_ns: int
    bytes: tuple[int, ...]


def arrange(
    units: Sequence[Unit], shape: Shape, pricing: Pricing, memory_bytes: int, pins: Sequence[Constraint] = ()
) -> Arrangement | None:
    """The cut whose slowest stage is fastest within memory, of equal stages if the shape says so; None if none fits.

    ``pins``: what stands in which stage.

    Among cuts by the slowest stage the least memory is not looked for: who finds none asks for a leaner assignment.
    """
    count, stages = len(units), shape.stages
    if count < stages or (shape.equal and count % stages):
        return None
    runs = _Runs(units, shape, pricing)
    asked = [{pin.index for pin in pins if any(map(pin.matches, unit.parameters))} for unit in units]
    limit = memory_bytes // shape.loops
    slowest = np.full((stages + 1, count + 1), NEVER_NS)  # of the first stages, by the unit that comes next
    slowest[0, 0] = 0
    begun = np.zeros((stages, count + 1), dtype=np.int64)  # where the last of them begins
    ends = np.arange(count + 1)
    for stage in range(stages):
        elsewhere = np.cumsum([0, *(bool(found - {stage}) for found in asked)])
        allowed = runs.bytes(stage, ends[:, None], ends) <= limit
        allowed &= (ends[:, None] < ends) & (elsewhere[:, None] == elsewhere)
        allowed &= ends == count // stages * (stage + 1) if shape.equal else ends <= count - (stages - stage - 1)
        reached = np.where(allowed, np.maximum(slowest[stage][:, None], runs.time_ns), NEVER_NS)
        begun[stage] = reached.argmin(axis=0)
        slowest[stage + 1] = reached.min(axis=0)
    if slowest[stages, count] >= NEVER_NS:
        return None
    bounds = [count]
    for stage in reversed(range(stages)):
        bounds.append(int(begun[stage, bounds[-1]]))
    spans = list(itertools.pairwise(reversed(bounds)))
    by_place = [range(place, stages, shape.places) for place in range(shape.places)]
    place_ns = max(sum(int(runs.time_ns[spans[s]]) for s in own) for own in by_place)
    objective = round(place_ns * shape.stretch)
    return Arrangement(
        marks=tuple(units[first].mark for first, _ in spans[1:]), objective_ns=objective,
        bubble_ns=objective - place_ns,
        bytes=tuple(sum(int(runs.bytes(s, *spans[s])) for s in own) for own in by_place),
    )  # fmt: skip


class _Runs:
    """What runs of units cost as a stage; ``time_ns[first, after]``: of those from ``first`` up to ``after``."""

    def __init__(self, units: Sequence[Unit], shape: Shape, pricing: Pricing) -> None:
        self._shape = shape
        entering = [0, *(unit.entering_bytes for unit in units[1:]), 0]
        sent = np.array([2 * shape.microbatches * transfer_ns(size, pricing) for size in entering])
        time, self._held, self._saved = (
            np.cumsum([0, *column], dtype=np.int64)
            for column in zip(*((unit.time_ns, unit.held_bytes, unit.saved_bytes) for unit in units), strict=True)
        )
        self.time_ns = time - time[:, None] + sent + sent[:, None]
        for one, ns in {key: ns for unit in units for key, ns in unit.repeated_ns.items()}.items():
            users = np.cumsum([0, *(one in unit.repeated_ns for unit in units)])
            self.time_ns += np.where(users > users[:, None], ns, 0)
        self._entering = np.array(entering, dtype=np.int64)
        most = np.triu(np.tile(np.array([unit.transient_bytes for unit in units]), (len(units) + 1, 1)))
        self._transient = np.concatenate([np.zeros_like(most[:, :1]), np.maximum.accumulate(most, axis=1)], axis=1)

    def bytes(self, stage: int, first: Any, after: Any) -> Any:
        """What a stage holds of the units from ``first`` up to ``after``, which may be arrays of one shape."""
        live = self._shape.live(stage)
        alive = np.rint((self._saved[after] - self._saved[first]) * live).astype(np.int64)
        arriving, leaving = self._entering[first], self._entering[after]
        received = np.rint(arriving * live).astype(np.int64) + arriving + leaving
        return self._held[after] - self._held[first] + alive + self._transient[first, after] + received


def transfer_ns(size: int, pricing: Pricing) -> int:
    """From one place to the next: the worst pair of neighbours."""
    pair = neighbours(pricing.groups[PIPELINE_AXIS])
    return nanoseconds(collective_s("broadcast", size, pair, pricing.cluster, pricing.profile)) if size else 0

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
from collections.abc import Sequence
from dataclasses import dataclass

from autopar.cost_model import collective_s, neighbours
from autopar.ir.constraints import Constraint
from autopar.ir.errors import UsageError
from autopar.ir.pipeline import LOOPED, LOOPS, PIPELINE_AXIS, Mark
from autopar.passes.pricing import Pricing, nanoseconds


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
        if count >= places and (loops == 1 or count % places == 0)
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

    ``parameters``: whose first use it is.
    """

    mark: Mark
    time_ns: int
    held_bytes: int
    saved_bytes: int
    transient_bytes: int
    entering_bytes: int
    parameters: tuple[str, ...] = ()


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
    transfers = [
        2 * shape.microbatches * transfer_ns(unit.entering_bytes, pricing) for unit in units
    ]
    time, held, saved = [0], [0], [0]
    for unit in units:
        time.append(time[-1] + unit.time_ns)
        held.append(held[-1] + unit.held_bytes)
        saved.append(saved[-1] + unit.saved_bytes)

    def stage_ns(first: int, after: int) -> int:
        sent = transfers[after] if after < count else 0
        return time[after] - time[first] + (transfers[first] if first else 0) + sent

    def stage_bytes(stage: int, first: int, after: int) -> int:
        most = max(unit.transient_bytes for unit in units[first:after])
        entering, leaving = (units[at].entering_bytes if 0 < at < count else 0 for at in (first, after))
        alive = round((saved[after] - saved[first]) * shape.live(stage))
        return held[after] - held[first] + alive + most + shape.received_bytes(stage, entering, leaving)

    asked = [{pin.index for pin in pins if any(map(pin.matches, unit.parameters))} for unit in units]
    limit = memory_bytes // shape.loops
    best: list[dict[int, tuple[int, int]]] = [{} for _ in range(stages + 1)]
    best[0][0] = (0, 0)
    for stage in range(stages):
        elsewhere = [at for at in range(count) if asked[at] - {stage}]
        last = count - (stages - stage - 1)
        for after in [count // stages * (stage + 1)] if shape.equal else range(stage + 1, last + 1):
            for first, (slowest, _) in best[stage].items():
                if first >= after or any(first <= at < after for at in elsewhere):
                    continue
                if stage_bytes(stage, first, after) > limit:
                    continue
                now = max(slowest, stage_ns(first, after))
                if after not in best[stage + 1] or now < best[stage + 1][after][0]:
                    best[stage + 1][after] = (now, first)
    if count not in best[stages]:
        return None
    bounds = [count]
    for stage in range(stages, 0, -1):
        bounds.append(best[stage][bounds[-1]][1])
    bounds.reverse()
    spans = list(itertools.pairwise(bounds))
    by_place = [range(place, stages, shape.places) for place in range(shape.places)]
    slowest = max(sum(stage_ns(*spans[s]) for s in own) for own in by_place)
    objective = round(slowest * shape.stretch)
    return Arrangement(
        marks=tuple(units[first].mark for first, _ in spans[1:]), objective_ns=objective,
        bubble_ns=objective - slowest,
        bytes=tuple(sum(stage_bytes(s, *spans[s]) for s in own) for own in by_place),
    )  # fmt: skip


def transfer_ns(size: int, pricing: Pricing) -> int:
    """From one place to the next: the worst pair of neighbours."""
    pair = neighbours(pricing.groups[PIPELINE_AXIS])
    return nanoseconds(collective_s("broadcast", size, pair, pricing.cluster, pricing.profile)) if size else 0

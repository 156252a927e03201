"""Pipeline schedules: the order in which one place works through its stages and microbatches.

As the classes of ``torch.distributed.pipelining`` that the runtime uses do: ``ScheduleGPipe``, ``Schedule1F1B``,
``ScheduleInterleaved1F1B`` and ``ScheduleInterleavedZeroBubble``. Text of an action as torch prints it: ``2F0``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from autopar.ir.errors import UsageError
from autopar.ir.pipeline import LOOPED, SCHEDULES, Pipeline

FORWARD, BACKWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS = "F", "B", "I", "W"


class Action(NamedTuple):
    """A stage's ``kind`` of work on one microbatch."""

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


def actions(pipeline: Pipeline, place: int) -> tuple[Action, ...]:
    """What a place computes in a step, in order. Raises UsageError for a schedule that there is not."""
    if pipeline.schedule not in SCHEDULES:
        raise UsageError(f"schedule={pipeline.schedule!r}: one of {', '.join(SCHEDULES)}")
    count = pipeline.stages[0].program.microbatches
    if pipeline.schedule in LOOPED:
        loops = len(pipeline.local(place))
        return looped(place, pipeline.ranks, loops, count, split=pipeline.schedule == "zero_bubble")
    ahead = count if pipeline.schedule == "gpipe" else min(count, pipeline.ranks - place)
    return single(place, ahead, count)


def single(stage: int, ahead: int, microbatches: int) -> tuple[Action, ...]:
    """One stage: ``ahead`` forwards, then a backward and a forward in turn, then what backwards are left."""
    made = [Action(stage, FORWARD, index) for index in range(ahead)]
    for index in range(microbatches):
        made.append(Action(stage, BACKWARD, index))
        if ahead + index < microbatches:
            made.append(Action(stage, FORWARD, ahead + index))
    return tuple(made)


def looped(place: int, places: int, loops: int, microbatches: int, *, split: bool) -> tuple[Action, ...]:
    """Several stages, a round of microbatches each in turn. ``split``: backwards in halves, weights last.

    Raises UsageError where the microbatches do not divide into rounds.
    """
    rounds = max(1, microbatches // places)
    if microbatches % rounds:
        raise UsageError(f"{microbatches} microbatches do not divide into {rounds} rounds of a looped pipeline")
    each = microbatches // rounds
    total = loops * microbatches
    warmup = min((loops - 1) * each + (1 if split else 2) * (places - 1 - place), total)

    def forward_stage(step: int) -> int:
        return step // each % loops * places + place

    def backward_stage(step: int) -> int:
        return (loops - 1 - (step - warmup) // each % loops) * places + place

    made: list[Action] = []
    counts: Counter[tuple[str, int]] = Counter()

    def act(kind: str, of: Callable[[int], int], step: int) -> None:
        stage = of(step)
        made.append(Action(stage, kind, counts[kind, stage]))
        counts[kind, stage] += 1

    weights = warmup
    for step in range(total + warmup):
        if step < total:
            act(FORWARD, forward_stage, step)
        if step >= warmup:
            act(BACKWARD_INPUTS if split else BACKWARD, backward_stage, step)
            if split and step - warmup >= place:
                act(BACKWARD_WEIGHTS, backward_stage, weights)
                weights += 1
    while split and weights < total + warmup:
        act(BACKWARD_WEIGHTS, backward_stage, weights)
        weights += 1
    return tuple(made)

"""A discrete-event simulation of one step of a lowered program: a second opinion on what a plan's objective says.

Every place of the pipeline is one device, for which the others that do the same stand in. What overlaps follows from
what waits for what (``stage.py``) and from streams (``device.py``); nothing of the objective's formula is in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from autopar.cost_model.cluster import Cluster
from autopar.cost_model.profile import CostProfile
from autopar.cost_model.simulator.counted import Counted, counted
from autopar.cost_model.simulator.device import Device, run
from autopar.cost_model.simulator.instructions import Collective, Instruction, Key, Post, Work
from autopar.cost_model.simulator.places import Places
from autopar.cost_model.simulator.prices import Prices
from autopar.cost_model.simulator.record import Recorder
from autopar.cost_model.simulator.scripts import Script
from autopar.cost_model.simulator.stage import Stage
from autopar.cost_model.simulator.timeline import DETAILS, Account, Timeline
from autopar.ir.errors import UsageError
from autopar.ir.pipeline import Pipeline
from autopar.ir.program import Program

# A timeline with more events than this tells less of each.
MAX_EVENTS = 100_000


def simulate(
    program: Program, cluster: Cluster, profile: CostProfile, *, optimizer: str, pipeline: Pipeline | None = None,
    detail: str | None = None,
) -> Timeline:  # fmt: skip
    """One training step of ``program``, or of ``pipeline``, its stages, on ``cluster``.

    ``detail``: one of ``DETAILS``; without it the most that makes no more than ``MAX_EVENTS`` events. Raises
    UsageError for a mesh of another number of devices than the cluster has, FileFormatError for a number that the
    profile lacks.
    """
    if detail not in (None, *DETAILS):
        raise UsageError(f"detail={detail!r}: one of {', '.join(DETAILS)}")
    prices = Prices(program.mesh if pipeline is None else pipeline.mesh, cluster, profile)
    if pipeline is None:
        stages: tuple[Stage, ...] = (Stage(program, prices, optimizer=optimizer),)
        scripts = [_alone(stages[0])]
        found = [counted(stages[0])]
    else:
        places = Places(pipeline, prices, optimizer=optimizer)
        stages = places.stages
        scripts = [places.script(place) for place in range(pipeline.ranks)]
        found = [places.counted(place) for place in range(pipeline.ranks)]
    shown = _detail(stages, detail)
    record = Recorder(shown, len(scripts))
    arrived: dict[Key, float] = {}
    devices = [Device(place, script, prices.overlap, arrived, record) for place, script in enumerate(scripts)]
    return _timeline(devices, run(devices, arrived), record, shown, tuple(found))


def _alone(stage: Stage) -> Iterator[Instruction]:
    """A step without a pipeline."""
    yield from stage.begin()
    for microbatch in range(stage.program.microbatches):
        yield from stage.forward(microbatch)
        yield from stage.backward(microbatch)
    yield from (Collective(move) for move in stage.sums())
    yield from stage.update()


def _detail(stages: tuple[Stage, ...], wanted: str | None) -> str:
    """How much a timeline can tell of these stages."""
    if wanted is not None:
        return wanted
    within = main = 0
    for stage in stages:
        calls = [node for node in stage.program.graph.nodes if node.target == "call"]
        times = stage.program.microbatches
        within += times * sum(
            int(str(node.attr("count"))) * _events(stage.blocks[str(node.attr("block"))]) for node in calls
        )
        main += times * _events(stage.main)
    if within + main <= MAX_EVENTS:
        return "operations"
    return "calls" if main <= MAX_EVENTS else "passes"


def _events(script: Script) -> int:
    """Events and flows of both passes."""
    total = 0
    for item in (*script.forward, *script.backward["full"], *script.again):
        if isinstance(item, Work):
            total += len(item.parts)
        elif isinstance(item, Collective | Post):
            total += 3
    return total


def _timeline(
    devices: list[Device], end: float, record: Recorder, detail: str, found: tuple[Counted, ...]
) -> Timeline:
    tracks = sorted({event.track for event in record.events})
    return Timeline(
        step_s=end / 1e9,
        places=tuple(
            Account(
                place=device.place, busy_s=_seconds(device.busy), waits_s=_seconds(device.waits),
                moved_s=_seconds(device.moved), idle_s=(end - device.stopped) / 1e9,
            )
            for device in devices
        ),
        tracks=tuple(tracks),
        events=tuple(sorted(record.events, key=lambda event: (event.track, event.start_ns, -event.end_ns))),
        flows=tuple(sorted(record.flows)), detail=detail, counted=found,
    )  # fmt: skip


def _seconds(ns: dict[str, float]) -> dict[str, float]:
    return {name: value / 1e9 for name, value in ns.items()}

"""Pipelines: bubbles come from events, and agree with what is known of schedules whose stages are equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch.distributed.pipelining import ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble

from autopar.cost_model.simulator import Timeline
from autopar.cost_model.simulator.device import Device, run
from autopar.cost_model.simulator.instructions import Receive, Tell
from autopar.cost_model.simulator.record import Recorder
from autopar.cost_model.simulator.schedules import actions, looped, single
from autopar.ir.errors import IRError, UsageError
from tests.simulator.programs import TIED, equal_stages, piped

F, B = 10, 20
PRICES = {"aten.linear.default": (F, B)}


def ns(timeline: Timeline) -> float:
    return round(timeline.step_s * 1e9, 6)


def named(schedule: str, place: int, places: int, loops: int, count: int) -> list[str]:
    return [str(action) for action in actions(equal_stages(schedule, places, loops, count), place)]


def of_torch(kind: Any, place: int, places: int, loops: int, count: int) -> list[str]:
    """The order of torch's own schedule, made without stages."""
    made = object.__new__(kind)
    made.n_local_stages, made.pp_group_size, made._n_microbatches, made._num_stages = loops, places, count, places
    made.number_of_rounds = max(1, count // places)
    made.microbatches_per_round = count // made.number_of_rounds
    if kind is ScheduleGPipe:
        order = made._get_pipeline_order()[place]
    else:
        order = made._calculate_single_rank_operations(place)
    return [str(action) for action in order if action is not None and action.microbatch_index is not None]


@pytest.mark.parametrize(
    ("schedule", "kind", "loops"),
    [
        ("gpipe", ScheduleGPipe, 1), ("interleaved", ScheduleInterleaved1F1B, 2),
        ("zero_bubble", ScheduleInterleavedZeroBubble, 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("places", "count"), [(2, 4), (4, 4), (4, 12), (3, 9)])
def test_places_work_in_torchs_order(schedule: str, kind: Any, loops: int, places: int, count: int) -> None:
    for place in range(places):
        assert named(schedule, place, places, loops, count) == of_torch(kind, place, places, loops, count)


def test_one_forward_one_backward_in_turn() -> None:
    first = "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3"
    last = "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"
    assert [" ".join(named("1f1b", place, 2, 1, 4)) for place in (0, 1)] == [first, last]
    assert [str(action) for action in single(3, 9, 2)][:2] == ["3F0", "3F1"]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("places", "count"), [(2, 2), (2, 4), (4, 4), (4, 16)])
def test_bubble_of_equal_stages(schedule: str, places: int, count: int) -> None:
    """A place idles while the others begin and end: (places - 1) forwards and backwards."""
    found = piped(equal_stages(schedule, places, 1, count), PRICES)
    assert ns(found) == (count + places - 1) * (F + B)
    assert {round(account.bubble_s * 1e9, 6) for account in found.places} == {(places - 1) * (F + B)}


@pytest.mark.parametrize(("places", "count"), [(2, 4), (4, 8)])
def test_interleaving_divides_the_bubble_by_the_stages_of_a_place(places: int, count: int) -> None:
    found = piped(equal_stages("interleaved", places, 2, count), PRICES)
    assert ns(found) == 2 * count * (F + B) + (places - 1) * (F + B)


def test_zero_bubble_fills_the_bubble_with_gradients_of_weights() -> None:
    """Its product's backward is half the input's, half the weight's: less idle than interleaved, never none."""
    count, places = 8, 4
    busy = 2 * count * (F + B)
    split = ns(piped(equal_stages("zero_bubble", places, 2, count), PRICES))
    whole = ns(piped(equal_stages("interleaved", places, 2, count), PRICES))
    assert busy < split < whole


def test_transfers_cost_only_where_the_longest_path_crosses() -> None:
    """Of the 8 transfers of 1F1B on two places 4 are on it; place 0 waits for them, and place 1 for what they delay.

    place 0   F 0-10, 10-20   B 46-66   F 66-76   B 76-96   F 96-106   B 112-132   B 142-162
    place 1   F 13-23  B 23-43  F 43-53  B 53-73   F 79-89  B 89-109   F 109-119   B 119-139
    """
    transfer = 3
    found = piped(equal_stages("1f1b", 2, 1, 4), {**PRICES, "broadcast": transfer})
    assert ns(found) == 5 * (F + B) + 4 * transfer
    told = [
        (event.start_ns, event.end_ns) for event in found.events
        if event.track == (0, "compute") and event.name == "aten.linear.default"
    ]  # fmt: skip
    assert told == [(0, 10), (10, 20), (46, 66), (66, 76), (76, 96), (96, 106), (112, 132), (142, 162)]
    sends = [event for event in found.events if event.category == "send"]
    assert len(sends) == 8 and {event.end_ns - event.start_ns for event in sends} == {transfer}


def test_gradients_of_a_parameter_at_two_places_are_added_up_when_both_are_there() -> None:
    pipeline = equal_stages("gpipe", 2, 1, 2)
    tied = tuple(
        replace(stage, program=replace(stage.program, parameters=(TIED,))) for stage in pipeline.stages
    )
    found = piped(replace(pipeline, stages=tied), {**PRICES, "all_reduce": 5, "optimizer": (0, 7)})
    assert ns(found) == 3 * (F + B) + 5 + 7
    assert [round(account.waits_s["sums"] * 1e9, 6) for account in found.places] == [5, 5]


def test_places_that_wait_for_each_other_are_named() -> None:
    record, arrived = Recorder("operations", 2), {}
    scripts = [iter([Receive("b"), Tell("a")]), iter([Receive("a"), Tell("b")])]
    devices = [Device(place, script, 1.0, arrived, record) for place, script in enumerate(scripts)]
    with pytest.raises(IRError, match="wait for each other: place 0 for b; place 1 for a"):
        run(devices, arrived)


def test_microbatches_that_make_no_rounds_are_refused() -> None:
    with pytest.raises(UsageError, match="7 microbatches do not divide into 3 rounds"):
        looped(0, 2, 2, 7, split=False)


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(UsageError, match="schedule='2f2b': one of gpipe, 1f1b, interleaved, zero_bubble"):
        actions(equal_stages("2f2b", 2, 1, 2), 0)

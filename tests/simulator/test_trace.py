"""Traces of real programs: every track nests, every arrow ends, and the same step gives the same bytes."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from autopar.cost_model import Cluster, load_profile
from autopar.cost_model.simulator import Timeline, simulate, trace_bytes, trace_events
from autopar.cost_model.simulator.timeline import CATEGORIES, DETAILS
from autopar.ir.mesh import Mesh
from autopar.ir.pipeline import Pipeline
from autopar.passes.stages import cut, even_marks
from tests.parity.planned import NETWORKS, Case, mesh_of, planned

CASES = [
    Case(model="gpt2", mesh="dp=2", zero=3, microbatches=2), Case(model="llama", mesh="dp=2,tp=2", microbatches=2),
    Case(model="llama", mesh="tp=2", recompute="full"), Case(model="gpt2", mesh="dp=2", recompute="selective", zero=3),
    Case(model="bert", mesh="dp=2,tp=2", zero=2, network="free"),
]  # fmt: skip
STREAMS = load_profile(str(NETWORKS / "streams.toml"))
PIPED = Case(model="gpt2", mesh="dp=2", microbatches=4, layers=4)


def timeline_of(case: Case, *, detail: str | None = None) -> Timeline:
    """As on one node of devices that overlap, so that streams have something to do at the same time."""
    cluster = Cluster.parse(f"1x{mesh_of(case.mesh).world_size}xCPU")
    return simulate(planned(case).program, cluster, STREAMS, optimizer="adamw", detail=detail)


def staged(schedule: str, *, detail: str | None = None) -> Timeline:
    program = planned(PIPED).program
    stages = cut(program, even_marks(program, 4 if schedule in ("interleaved", "zero_bubble") else 2))
    mesh = Mesh((("pp", 2), *mesh_of(PIPED.mesh).axes))
    pipeline = Pipeline(mesh=mesh, schedule=schedule, stages=stages)
    return simulate(
        program, Cluster.parse("1x4xCPU"), STREAMS, optimizer="adamw", pipeline=pipeline, detail=detail
    )


def check(found: Timeline) -> None:
    """What a viewer needs: see the module's first line."""
    document = trace_events(found)
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    arrows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            assert event["dur"] > 0 and event["cat"] in CATEGORIES
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "sf":
            arrows[event["id"]].append(event)
    named = {(e["pid"], e["tid"]) for e in document["traceEvents"] if e["name"] == "thread_name"}
    assert set(tracks) <= named
    for spans in tracks.values():
        _check_nested(spans)
    for start, end in arrows.values():
        assert (start["ph"], end["ph"]) == ("s", "f") and start["ts"] <= end["ts"]
        for each in (start, end):
            assert any(low - 1e-4 <= each["ts"] < high for low, high in tracks[each["pid"], each["tid"]])
    assert max(high for spans in tracks.values() for _, high in spans) <= found.step_s * 1e6 + 1e-3


def _check_nested(spans: list[tuple[float, float]]) -> None:
    """Given in the order of their starts, the longer first."""
    opened: list[float] = []
    for low, high in sorted(spans, key=lambda span: (span[0], -span[1])):
        while opened and opened[-1] <= low + 1e-4:
            opened.pop()
        assert not opened or high <= opened[-1] + 1e-4
        opened.append(high)


@pytest.mark.parametrize("detail", DETAILS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_trace_is_one_that_a_viewer_can_show(case: Case, detail: str) -> None:
    check(timeline_of(case, detail=detail))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble"])
def test_a_trace_of_a_pipeline_is_one_that_a_viewer_can_show(schedule: str) -> None:
    found = staged(schedule)
    check(found)
    assert {track.place for track in found.tracks} == {0, 1}
    between = [flow for flow in found.flows if flow.source.place != flow.target.place]
    assert between and all(flow.source.stream.startswith("send to") for flow in between)


def test_equal_steps_have_equal_bytes() -> None:
    first, again = (trace_bytes(staged("interleaved")) for _ in range(2))
    assert first == again and json.loads(first)["otherData"]["detail"] == "operations"


@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_times_do_not_depend_on_how_much_is_told(case: Case) -> None:
    found = [timeline_of(case, detail=detail) for detail in DETAILS]
    assert all((each.step_s, each.places) == (found[0].step_s, found[0].places) for each in found)
    counts = [len(each.events) for each in found]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]


def test_a_long_step_is_told_by_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says so."""
    monkeypatch.setattr("autopar.cost_model.simulator.step.MAX_EVENTS", 300)
    found = staged("1f1b")
    assert found.detail == "calls" and not any(event.where.startswith("transformer.h") for event in found.events)
    assert "its operations and collectives are not told" in trace_events(found)["otherData"]["told"]
    monkeypatch.setattr("autopar.cost_model.simulator.step.MAX_EVENTS", 10)
    assert staged("1f1b").detail == "passes"

"""A timeline as a file of Chrome's trace-event format, which Perfetto and chrome://tracing open.

A process is a place of the pipeline, a thread a stream. Times are in us, with ns behind the point. Arrows (flows) lead
from what was computed to the communication that takes it along, and from there to what waited for it.
"""

from __future__ import annotations

import json
from typing import Any

from autopar.cost_model.simulator.timeline import COMPUTE, DETAILS, Event, Flow, Timeline, Track

# What an event stands for at each level of detail, for whoever wonders where the others are.
_TOLD = dict(zip(DETAILS, (
    "every operation and communication",
    "each call of a block as one event; its operations and collectives are not told",
    "each pass of a microbatch as one event; its operations and collectives are not told",
), strict=True))  # fmt: skip


def trace_events(timeline: Timeline) -> dict[str, Any]:
    """The document: ``traceEvents`` with names of tracks, complete events (X), and flows (s, f) that all end."""
    streams = {track: number for number, track in enumerate(sorted(timeline.tracks, key=_order))}
    events = [*_names(timeline, streams)]
    events += [_event(event, streams) for event in timeline.events]
    for number, flow in enumerate(timeline.flows):
        events += _flow(number, flow, streams)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "detail": timeline.detail, "told": _TOLD[timeline.detail], "step_us": round(timeline.step_s * 1e6, 3),
        },
        "traceEvents": events,
    }  # fmt: skip


def trace_bytes(timeline: Timeline) -> bytes:
    """The same as JSON; equal for equal timelines."""
    return (json.dumps(trace_events(timeline), sort_keys=True, separators=(",", ":")) + "\n").encode()


def _order(track: Track) -> tuple[int, bool, str]:
    return track.place, track.stream != COMPUTE, track.stream


def _names(timeline: Timeline, streams: dict[Track, int]) -> list[dict[str, Any]]:
    named = [
        {"ph": "M", "name": "process_name", "pid": account.place, "tid": 0, "args": {"name": f"place {account.place}"}}
        for account in timeline.places
    ]
    for track, number in streams.items():
        at = {"ph": "M", "pid": track.place, "tid": number}
        named.append({**at, "name": "thread_name", "args": {"name": track.stream}})
        named.append({**at, "name": "thread_sort_index", "args": {"sort_index": number}})
    return named


def _event(event: Event, streams: dict[Track, int]) -> dict[str, Any]:
    return {
        "ph": "X", "name": event.name, "cat": event.category, "pid": event.track.place, "tid": streams[event.track],
        "ts": event.start_ns / 1e3, "dur": (event.end_ns - event.start_ns) / 1e3, "args": {"where": event.where},
    }  # fmt: skip


def _flow(number: int, flow: Flow, streams: dict[Track, int]) -> list[dict[str, Any]]:
    both = {"name": "needs", "cat": "flow", "id": number}
    start = {"ph": "s", "pid": flow.source.place, "tid": streams[flow.source], "ts": flow.leaves_ns / 1e3}
    end = {"ph": "f", "bp": "e", "pid": flow.target.place, "tid": streams[flow.target], "ts": flow.arrives_ns / 1e3}
    return [{**both, **start}, {**both, **end}]

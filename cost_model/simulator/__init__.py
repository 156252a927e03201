"""A simulated step of a lowered program: its time, its timeline, and how both differ from a plan's objective."""

from __future__ import annotations

from autopar.cost_model.simulator.compare import Comparison, Row, compare
from autopar.cost_model.simulator.document import document
from autopar.cost_model.simulator.step import simulate
from autopar.cost_model.simulator.timeline import Account, Event, Flow, Timeline, Track
from autopar.cost_model.simulator.trace import trace_bytes, trace_events

__all__ = [
    "Account",
    "Comparison",
    "Event",
    "Flow",
    "Row",
    "Timeline",
    "Track",
    "compare",
    "document",
    "simulate",
    "trace_bytes",
    "trace_events",
]

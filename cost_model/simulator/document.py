"""A simulated step as plain data, for a JSON document."""

from __future__ import annotations

from typing import Any

from autopar.cost_model.simulator.compare import Comparison
from autopar.cost_model.simulator.timeline import Timeline


def document(timeline: Timeline, found: Comparison) -> dict[str, Any]:
    """Seconds of a step: simulated, the plan's, the parts in which they differ, and each place's. No events."""
    return {
        "objective_s": found.objective_s, "simulated_s": found.simulated_s, "difference_s": found.difference_s,
        "unexplained_s": found.unexplained_s,
        "parts": [
            {
                "part": row.part, "objective_s": row.objective_s, "simulated_s": row.simulated_s,
                "difference_s": row.difference_s,
            }
            for row in found.rows
        ],
        "places": [
            {
                "place": account.place, "busy_s": dict(account.busy_s), "waits_s": dict(account.waits_s),
                "moved_s": dict(account.moved_s), "idle_s": account.idle_s, "exposed_comm_s": account.exposed_s,
                "bubble_s": account.bubble_s,
            }
            for account in timeline.places
        ],
    }  # fmt: skip

"""How many processes this machine can run at once, without importing torch."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

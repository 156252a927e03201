"""How many processes this machine can run at once."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Cores that this process may run on, no more than it is given time of."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _given())))


def _given() -> float:
    """Cores whose time control groups (version 2) give, such as a container's."""
    groups = OWN_CGROUP.read_text().splitlines() if OWN_CGROUP.is_file() else []
    own = next((Path(line.removeprefix("0::/")) for line in groups if line.startswith("0::/")), Path())
    return min(_limit(CGROUPS / place / "cpu.max") for place in (own, *own.parents))


def _limit(file: Path) -> float:
    """Of one group: microseconds of each period, "max" if there is no limit."""
    try:
        quota, period = file.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf

"""Random cases for as many minutes as one gives.

``AUTOPAR_FUZZ_MINUTES`` is the budget, ``AUTOPAR_FUZZ_SEED`` (0: by the clock) the first seed.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable

import pytest


def tried(run: Callable[[int], bool], minutes: float, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """How many seeds were right and how many refused.

    ``run`` raises where a seed is wrong, with notes that name it, and returns whether it was refused.
    ``minutes``: where nobody says otherwise. Fails, at last, where any was wrong.
    """
    minutes = float(os.environ.get("AUTOPAR_FUZZ_MINUTES", minutes))
    first = int(os.environ.get("AUTOPAR_FUZZ_SEED", "0")) or time.time_ns() % 10**9 + 1000
    with capsys.disabled():
        print(f"\nfuzzing for {minutes} minutes from AUTOPAR_FUZZ_SEED={first}")
    end, found, wrong = time.monotonic() + minutes * 60, [0, 0], list[str]()
    for seed in itertools.count(first):
        if time.monotonic() >= end:
            break
        try:
            found[run(seed)] += 1
        except Exception as error:  # noqa: BLE001 — whatever it is, the other seeds are tried as well
            notes = "\n  ".join(getattr(error, "__notes__", []))
            wrong.append(f"seed {seed}: {type(error).__name__}: {error}\n  {notes}")
    right, refused = found
    with capsys.disabled():
        print(f"{right} right, {refused} refused, {len(wrong)} wrong")
    assert not wrong, "\n\n".join(wrong)
    return right, refused

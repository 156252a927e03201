"""``python -m tests.memory``: what training holds on a rank, as planned and as measured, side by side."""

from __future__ import annotations

import sys

from tests.harness import each, run_processes
from tests.memory.cases import CASES, HYBRID, PIPELINES
from tests.memory.measured import measure, measured_on

verbose = "-v" in sys.argv
words = [word for word in sys.argv[1:] if word != "-v"]
chosen = [case for case in CASES if all(word in str(case) for word in words)]
found = list(run_processes(2, each, [(measure, (case,)) for case in chosen], timeout_s=1800)[0]) if chosen else []
rows = [(str(case), report) for case, report in zip(chosen, found, strict=True)]
chosen = [case for case in HYBRID if all(word in str(case) for word in words)]
found = list(run_processes(4, each, [(measure, (case,)) for case in chosen], timeout_s=1800)[0]) if chosen else []
rows += [(str(case), report) for case, report in zip(chosen, found, strict=True)]
for case in PIPELINES:
    if all(word in str(case) for word in words):
        rows += [(f"{case} stage {place}", report) for place, report in enumerate(measured_on(case))]
print(f"{'configuration':72} {'planned MB':>11} {'measured MB':>12} {'planned / measured':>19}")
for name, report in rows:
    planned, measured = report["planned"], report["measured"]
    print(f"{name:72} {planned / 1e6:11.2f} {measured / 1e6:12.2f} {planned / measured:19.3f}")
    if verbose:
        print("   ", {what: f"{size / 1e6:.2f}" for what, size in report["parts"].items()})
        top = sorted(report["by operation"].items(), key=lambda item: -item[1])[:12]
        print("   ", {what: f"{size / 1e6:.2f}" for what, size in top})

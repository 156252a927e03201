"""``python -m benchmarks.search``: how long planning takes, what of, and how close to the best its plans are proven.

Each plan is made by ``autopar plan --json`` in a process of its own with an empty home folder; times are
medians of several runs and leave out imports and the building of the model, as ``search`` in its document does.
``--zoo`` instead plans every dense model of the zoo on 8, 64 and 512 devices once, for the gaps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

MOST_GAP = 0.01
MOST_RSS_BYTES = 0.8e9
DEEPER = 2.0  # the deepest model may take so many times as long as the shallowest
CLUSTERS = {8: "1x8xH100-SXM", 64: "8x8xH100-SXM", 512: "64x8xH100-SXM"}
INFEASIBLE = "InfeasibleError"

# A configuration that is neither in the zoo nor anywhere in the code.
UNSEEN = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3328, "intermediate_size": 9984,
    "num_hidden_layers": 36, "num_attention_heads": 26, "num_key_value_heads": 2, "vocab_size": 151936,
    "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One plan. ``limit_s``: what the median of ``total_s`` may be; None: for information."""

    model: str
    cluster: str
    batch: int | None = None
    length: int | None = None
    layers: int | None = None
    mesh: str | None = None
    limit_s: float | None = None

    def arguments(self, folder: Path) -> list[str]:
        """``folder`` holds the configuration named unseen."""
        model = f"hf:{folder / 'unseen'}" if self.model == "hf:unseen" else self.model
        options = {
            "--cluster": self.cluster, "--batch-size": self.batch, "--seq-len": self.length, "--layers": self.layers,
            "--mesh": self.mesh, "--mixed-precision": "bf16",
        }  # fmt: skip
        given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
        return ["plan", model, "--json", *given]

    def __str__(self) -> str:
        depth = f", {self.layers} layers" if self.layers else ""
        pinned = f", {self.mesh}" if self.mesh else ""
        return f"{self.model}{depth} on {self.cluster}{pinned}"


BASE = Case(model="zoo:llama3-8b", cluster="8x8xH100-SXM", batch=512, length=4096, limit_s=1.3)
DEPTHS = tuple(replace(BASE, layers=layers, limit_s=None) for layers in (8, 32, 126))
CASES = (
    BASE,
    *DEPTHS,
    replace(BASE, model="zoo:llama3-405b", cluster="64x8xH100-SXM", limit_s=3.0),
    replace(BASE, mesh="dp=4,cp=2,tp=8", limit_s=3.0),
    replace(BASE, model="hf:unseen", limit_s=1.3),
)


def planned(case: Case, folder: Path) -> dict[str, Any]:
    """The document of one run, or its error."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    run = subprocess.run(
        [sys.executable, "-m", "autopar", *case.arguments(folder)], capture_output=True, text=True, check=False,
        env={**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(run.stdout or run.stderr)
    return found


def measured(case: Case, runs: int, folder: Path) -> dict[str, Any]:
    """Medians of ``runs`` runs. Raises AssertionError where their plans differ."""
    documents = [planned(case, folder) for _ in range(runs)]
    first = documents[0]
    if "error" in first:
        return {"case": str(case), "error": first["error"]}
    hashes = {document["plan_sha256"] for document in documents}
    assert len(hashes) == 1 or first["status"] == "time limit", f"{case}: {len(hashes)} different plans"
    searches = [document["search"] for document in documents]
    medians = {key: statistics.median(search[key] for search in searches) for key in sorted(searches[0])}
    return {
        "case": str(case), "limit_s": case.limit_s, "objective_s": first["objective_s"], "gap": first["gap"],
        "mesh": first["mesh"], "microbatches": first["num_microbatches"], **medians,
    }  # fmt: skip


def row(found: dict[str, Any]) -> str:
    if "error" in found:
        return f"{found['case']:<52} exit {found['error']['code']}: {found['error']['message'].splitlines()[0]}"
    mesh = " ".join(f"{axis} {size}" for axis, size in found["mesh"].items())
    times = " ".join(f"{found[key]:6.2f}" for key in ("trace_s", "fold_s", "solve_s", "lower_s", "total_s"))
    return (
        f"{found['case']:<52} {times} {found['peak_rss_bytes'] / 1e9:5.2f} {found['variables']:6.0f} "
        f"{found['candidates']:5.0f} {found['gap']:7.2%} {found['objective_s']:9.4g}  {mesh}"
    )


def broken(found: dict[str, Any]) -> Iterator[str]:
    """What of a case is over its limit."""
    if "error" in found:
        if found["error"]["code"] != INFEASIBLE:
            yield f"{found['case']}: {found['error']['message']}"
        return
    if found["gap"] > MOST_GAP:
        yield f"{found['case']}: gap {found['gap']:.2%}, limit {MOST_GAP:.0%}"
    if found["limit_s"] is not None:
        if found["total_s"] > found["limit_s"]:
            yield f"{found['case']}: {found['total_s']:.2f} s, limit {found['limit_s']} s"
        if found["peak_rss_bytes"] > MOST_RSS_BYTES:
            yield f"{found['case']}: {found['peak_rss_bytes'] / 1e9:.2f} GB of memory, limit 0.8 GB"


def zoo_cases() -> list[Case]:
    """Every dense model on every number of devices, at least one sample a device."""
    from autopar.zoo.models import ENTRIES

    cases = []
    for name in ENTRIES:
        for devices, cluster in CLUSTERS.items():
            length = 4096 if name.startswith("llama3") else None
            cases.append(Case(model=f"zoo:{name}", cluster=cluster, batch=max(512, 2 * devices), length=length))
    return cases


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write ``results/search.json`` (or ``search_zoo.json``); 1 if a limit is not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each case")
    parser.add_argument("--zoo", action="store_true", help="every dense model on 8, 64 and 512 devices, once")
    parser.add_argument("--only", default="", help="cases whose text contains this")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result; default benchmarks/results")
    options = parser.parse_args(argv)
    from benchmarks import report

    cases: Sequence[Case] = zoo_cases() if options.zoo else CASES
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    print(f"{'case':<52}  trace   fold  solve  lower  total  GB   vars   problems  gap   objective  mesh")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "unseen").mkdir()
        (folder / "unseen" / "config.json").write_text(json.dumps(UNSEEN))
        for case in (case for case in cases if options.only in str(case)):
            found = measured(case, 1 if options.zoo else options.runs, folder)
            rows.append(found)
            problems += broken(found)
            print(row(found), flush=True)
    depths = [found["total_s"] for found in rows if found["case"] in {str(case) for case in DEPTHS}]
    if len(depths) > 1 and max(depths) > DEEPER * min(depths):
        problems.append(f"depth: {max(depths):.2f} s against {min(depths):.2f} s, limit {DEEPER} times")
    print(*problems, sep="\n")
    where = report.write("search_zoo" if options.zoo else "search", {"cases": rows}, options.out or report.RESULTS)
    print(f"written to {where}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

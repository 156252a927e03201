"""``python -m benchmarks.recipes``: plans beside the standard recipes, and beside themselves, by the simulator.

Every dense model of the zoo that fits is planned on every cluster of ``CLUSTERS``, as ``autopar plan`` does it, and so
is each recipe that fits. All of them are simulated. A plan is to be no slower than the best recipe, and the simulated
step is to differ from the planned one by 5 % at most or by causes that are counted.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autopar.arguments import Arguments, check
from autopar.compiling import Readied, ready
from autopar.cost_model.simulator import Comparison, compare, simulate
from autopar.finding import find_plan, pipeline_of
from autopar.ir.errors import AutoparError, InfeasibleError
from autopar.ir.plan import RECIPE_NAMES
from autopar.zoo.mixtures import MIXTURES
from autopar.zoo.models import ENTRIES

# fp16 where there is no bf16.
CLUSTERS = {"1x8xA100-SXM-80GB": "bf16", "8x8xH100-SXM": "bf16", "2x8xV100-SXM2-32GB@32Gb/s": "fp16"}
DENSE = tuple(name for name in ENTRIES if name not in {mixture.name for mixture in MIXTURES})
SLOWER = 1 + 1e-6  # prices are whole ns
NEAR = 0.05  # how much of the planned step the simulated one may differ by
UNCOUNTED = 0.01  # how much of the difference may have no cause


def simulated(readied: Readied, arguments: Arguments, *, beside: bool) -> Comparison:
    """A plan beside its simulation; ``beside``: the plan is compared with the recipes, as on the command line."""
    plan, program = find_plan(readied, arguments, compare=beside)
    pipeline = pipeline_of(plan, program)
    timeline = simulate(program, arguments.cluster, arguments.profile, optimizer=plan.optimizer, pipeline=pipeline)
    return compare(timeline, plan)


def measured(name: str, cluster: str) -> dict[str, Any]:
    """The plan and each recipe that fits: seconds of a step, planned and simulated."""
    model, inputs = ENTRIES[name].build(batch_size=None, seq_len=None, layers=None)
    arguments = check(cluster=cluster, name=name, mixed_precision=CLUSTERS[cluster])
    readied = ready(model, inputs, arguments)
    found = simulated(readied, arguments, beside=True)
    recipes: dict[str, Any] = {}
    for recipe in RECIPE_NAMES:
        try:
            one = simulated(readied, dataclasses.replace(arguments, like=recipe), beside=False)
        except AutoparError as error:
            recipes[recipe] = {"why": str(error).splitlines()[0]}
        else:
            recipes[recipe] = {"objective_s": one.objective_s, "simulated_s": one.simulated_s}
    return {
        "model": name, "cluster": cluster, "objective_s": found.objective_s, "simulated_s": found.simulated_s,
        "unexplained_s": found.unexplained_s, "recipes": recipes,
    }  # fmt: skip


def best_recipe(row: dict[str, Any]) -> tuple[str, float] | None:
    """Name and simulated seconds of the fastest recipe that fits."""
    fitting = [(known["simulated_s"], name) for name, known in row["recipes"].items() if "simulated_s" in known]
    return (min(fitting)[1], min(fitting)[0]) if fitting else None


def broken(row: dict[str, Any]) -> Iterator[str]:
    """What of a row is not as it is to be."""
    where, best = f"{row['model']} on {row['cluster']}", best_recipe(row)
    if best is not None and row["simulated_s"] > best[1] * SLOWER:
        yield f"{where}: the plan takes {row['simulated_s']:.5g} s, {best[0]} {best[1]:.5g} s"
    difference = row["simulated_s"] - row["objective_s"]
    counted = abs(row["unexplained_s"]) <= UNCOUNTED * abs(difference)
    if abs(difference) > NEAR * row["objective_s"] and not counted:
        yield f"{where}: {row['unexplained_s']:.3g} s of a difference of {difference:.3g} s have no cause"


def line(row: dict[str, Any]) -> str:
    where, best = f"{row['model']:<14} {row['cluster']:<26}", best_recipe(row)
    off = row["simulated_s"] / row["objective_s"] - 1
    beside = "no recipe fits" if best is None else f"{best[1] / row['simulated_s']:6.3f} × as fast as {best[0]}"
    return f"{where} planned {row['objective_s']:9.4g} s, simulated {row['simulated_s']:9.4g} s ({off:+.1%}), {beside}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line a case and write ``results/recipes.json``; 1 if anything is not as it is to be."""
    from benchmarks import report

    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose model or cluster contains this")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result; default benchmarks/results")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    for cluster in CLUSTERS:
        for name in DENSE:
            if options.only not in f"{name} {cluster}":
                continue
            try:
                row = measured(name, cluster)
            except InfeasibleError as error:
                print(f"{name:<14} {cluster:<26} does not fit: {str(error).splitlines()[0]}", flush=True)
                continue
            print(line(row), flush=True)
            rows.append(row)
            failures += broken(row)
    print(f"written to {report.write('recipes', {'rows': rows}, options.out or report.RESULTS)}")
    for failure in failures:
        print(f"NOT AS IT IS TO BE: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

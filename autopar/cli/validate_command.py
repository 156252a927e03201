"""``autopar validate PLAN [MODEL]``: schema, hash, and fit to a model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from autopar.cli import options
from autopar.cli.output import print_json, progress, stdout
from autopar.ir.errors import UsageError

OptionalModel = Annotated[
    str | None, typer.Argument(metavar="MODEL", help=options.MODEL_HELP, show_default=False)
]


def validate(
    path: options.PlanFile,
    model: OptionalModel = None,
    batch_size: options.BatchSize = None,
    seq_len: options.SeqLen = None,
    layers: options.Layers = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Check a saved plan: its schema and its hash, and with MODEL whether it fits the model."""
    from autopar.cost_model import Cluster
    from autopar.ir.plan import Plan

    sizes = {"--batch-size": batch_size, "--seq-len": seq_len, "--layers": layers}
    given = [option for option, value in sizes.items() if value is not None]
    if model is None and given:
        raise UsageError(f"{', '.join(given)} without a MODEL: sizes are those of the model to compare with")
    plan = Plan.load(path)
    Cluster.from_dict(plan.cluster)
    document: dict[str, Any] = {"plan": str(path), "plan_sha256": plan.sha256, "valid": True}
    if model is not None:
        with progress(f"comparing with {model}"):
            from autopar import api
            from autopar.models import resolve

            found = resolve(model, batch_size=batch_size, seq_len=seq_len, layers=layers)
            api.check_fit(plan, found.model, found.example_inputs)
        document |= {"model": found.name, "fits": True}
    if as_json:
        print_json(document)
        return
    stdout().print(f"{path}: valid, sha256 {plan.sha256[:16]}", soft_wrap=True)
    if model is not None:
        stdout().print(f"{path}: fits {model}", soft_wrap=True)

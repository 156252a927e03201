"""``autopar cluster show``: what a cluster is taken to be."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from autopar.cli import options
from autopar.cli.output import print_json, stdout

Spec = Annotated[
    str | None,
    typer.Argument(
        metavar="SPEC",
        help="NODESxGPUSxDEVICE\\[@RATE] such as 2x8xH100-SXM, or a file; default: this machine.",
        show_default=False,
    ),
]


def show(
    spec: Spec = None,
    profile: options.ProfileSpec = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Print what a cluster is taken to be, and where each number came from."""
    from autopar.cli.machine import this_machine
    from autopar.cost_model import Cluster, describe, load_profile

    loaded = load_profile(profile)
    cluster = this_machine(loaded) if spec is None else Cluster.load(spec)
    rows = describe(cluster, loaded)
    if as_json:
        print_json({
            "cluster": cluster.to_dict(),
            "world_size": cluster.world_size,
            "profile": {"name": loaded.name, "sha256": loaded.sha256},
            "rows": [asdict(row) for row in rows],
        })  # fmt: skip
        return
    from autopar.cli.tables import short_origin, table

    shown = [(row.what, row.value, short_origin(row.source)) for row in rows]
    if spec is None:
        shown[0] = (*shown[0][:2], "this machine")
    stdout().print(table(("what", "value", "source"), shown, wide="source"))

"""The commands by name. Each one imports what it needs when it runs, so that ``--help`` stays quick."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.main import get_command

from autopar.cli import (
    cluster_command,
    diff_command,
    env_command,
    explain_command,
    options,
    plan_command,
    profile_command,
    report_command,
    run_command,
    show_command,
    simulate_command,
    validate_command,
    verify_command,
)

_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
_HELP = "Find the fastest way to spread a model's training over a cluster, and run it."


def command() -> Any:
    """The whole command line, to be called with ``main(args, standalone_mode=False)``."""
    app = typer.Typer(help=_HELP, **_SETTINGS)
    app.callback()(_top)
    app.command("plan")(plan_command.plan)
    app.command("show")(show_command.show)
    app.command("explain")(explain_command.explain)
    app.command("diff")(diff_command.diff)
    app.command("validate")(validate_command.validate)
    app.command("verify")(verify_command.verify)
    app.command("simulate")(simulate_command.simulate)
    app.command("report")(report_command.report)
    app.command("run", context_settings=run_command.SETTINGS)(run_command.run)
    profile = typer.Typer(help="Cost profiles: the figures that prices are made of.", **_SETTINGS)
    profile.command("list")(profile_command.list_)
    profile.command("show")(profile_command.show)
    profile.command("calibrate")(profile_command.calibrate)
    profile.command("validate")(profile_command.validate)
    app.add_typer(profile, name="profile")
    cluster = typer.Typer(help="What a cluster is taken to be.", **_SETTINGS)
    cluster.callback()(_group)
    cluster.command("show")(cluster_command.show)
    app.add_typer(cluster, name="cluster")
    app.command("env")(env_command.env)
    return get_command(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autopar {env_command.version('autopar') or 'not installed'}")
        raise typer.Exit


def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
    debug: options.Debug = False,
) -> None:
    """Find the fastest way to spread a model's training over a cluster, and run it."""


def _group() -> None:
    """What a cluster is taken to be."""

"""``autopar profile list|show|validate``: cost profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar.cli import options
from autopar.cli.output import print_json, stdout

ProfileArgument = Annotated[
    str | None, typer.Argument(metavar="NAME|FILE", help="Default: the built-in figures.", show_default=False)
]
ProfileFile = Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file.", show_default=False)]


def list_(as_json: options.AsJson = False, debug: options.Debug = False) -> None:
    """Print the profiles that have a name: the built-in one and those that packages register."""
    from autopar.cost_model import list_profiles

    entries = list_profiles()
    if as_json:
        print_json([{"name": entry.name, "source": entry.source} for entry in entries])
        return
    from autopar.cli.tables import table

    stdout().print(table(("name", "from"), [(entry.name, entry.source) for entry in entries]))


def show(
    profile: ProfileArgument = None, as_json: options.AsJson = False, debug: options.Debug = False
) -> None:
    """Print the figures of a profile, each with its source."""
    from autopar.cost_model import load_profile

    loaded = load_profile(profile)
    if as_json:
        numbers = loaded.data.model_dump(mode="json", exclude_none=True)
        files = [layer.file.name for layer in loaded.layers]
        print_json({"name": loaded.name, "sha256": loaded.sha256, "files": files, **numbers})
        return
    from autopar.cli.profile_view import show_profile

    show_profile(loaded)


def validate(path: ProfileFile, as_json: options.AsJson = False, debug: options.Debug = False) -> None:
    """Check a profile's file; a mistake is named with its key and line."""
    from autopar.cost_model import CostProfile
    from autopar.ir.errors import FileFormatError

    if not path.is_file():
        raise FileFormatError(f"{path}: no such file", details={"file": str(path)})
    loaded = CostProfile(path)
    if as_json:
        print_json({"file": str(path), "sha256": loaded.sha256, "valid": True})
        return
    stdout().print(f"{path}: valid, sha256 {loaded.sha256[:16]} over the built-in figures", soft_wrap=True)

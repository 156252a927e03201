"""``autopar profile list|show|calibrate|validate``: cost profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from autopar.cli import options
from autopar.cli.output import check_writable, note, print_json, progress, stdout, write_atomic

ProfileArgument = Annotated[
    str | None, typer.Argument(metavar="NAME|FILE", help="Default: the built-in figures.", show_default=False)
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Save the profile as TOML.", show_default=False)]
MeasuredDevice = Annotated[
    str | None, typer.Option("--device", help="cuda or cpu; default: GPUs if there are any.", show_default=False)
]
Processes = Annotated[
    int | None, typer.Option("--nproc", help="Default: one for each GPU or core.", show_default=False)
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


def calibrate(
    output: Output = None, device: MeasuredDevice = None, nproc: Processes = None,
    as_json: options.AsJson = False, debug: options.Debug = False,
) -> None:  # fmt: skip
    """Measure this machine, and write a profile of it: rates of its devices, seconds of operations, its links."""
    if output is not None:
        check_writable(output)
    with progress("loading torch"):
        from autopar.calibrating import calibrate, toml
    with progress("measuring") as say:
        tables = calibrate(device, nproc, say)
    _print_measured(tables, as_json=as_json)
    if "link" not in tables:
        note("one process has no links: a profile has the built-in ones of the device; --nproc 2 or more measures them")
    if output is None:
        note("nothing was saved: -o FILE keeps the figures, for --profile FILE")
        return
    write_atomic(output, toml(tables).encode())
    note(f"saved {output}")


def _print_measured(tables: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(tables)
        return
    from autopar.calibrating.document import rows
    from autopar.cli.tables import table
    from autopar.cost_model import load_profile

    before = load_profile(None).data.model_dump(mode="json", exclude_none=True)
    stdout().print(table(("figure", "measured", "built-in"), list(rows(tables, before))))
    curves = ", ".join((*tables["efficiency"], *tables["op"]))
    stdout().print(f"and, by size: {curves}", soft_wrap=True)


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

"""A cost profile as tables: devices, links, efficiencies, measured operations, optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from autopar.cli.output import stdout
from autopar.cli.tables import section, short_origin, size, table
from autopar.cost_model import CostProfile
from autopar.cost_model.profile_schema import Curve, Device, Sourced
from autopar.cost_model.units import MIB_BYTES


def show_profile(profile: CostProfile) -> None:
    """Print every table of ``profile`` with the place that it came from."""
    console = stdout()
    for part in _parts(profile):
        console.print(part)


def _parts(profile: CostProfile) -> Iterator[RenderableType]:
    yield Text.assemble(
        ("Cost profile ", "bold"), (profile.name, "bold cyan"), f"  sha256 {profile.sha256[:16]}"
    )
    yield Text("files, later ones win: " + ", ".join(layer.file.name for layer in profile.layers))
    if profile.has_compute_hook or profile.has_collective_hook:
        yield Text("prices are also made by the profile's Python code")
    yield _devices(profile)
    yield _links(profile)
    if profile.data.efficiency or profile.data.op:
        yield _curves(profile)
    yield _optimizers(profile)


def _devices(profile: CostProfile) -> RenderableType:
    rows = [
        (
            name,
            _number(device.bf16_tflops or device.fp16_tflops),
            _number(device.fp32_tflops),
            _memory(device),
            _number(device.memory_tb_s),
            "\n".join(link for link in (device.intra, device.inter) if link),
            _source(profile, device, "device", name),
        )
        for name, device in profile.data.device.items()
    ]
    legend = Text("  TFLOPS in half precision and fp32; links inside a node and between nodes", style="dim")
    columns = ("device", ">half", ">fp32", ">memory", ">TB/s", "links", "from")
    return section("Devices", legend, table(columns, rows, wide="from"))


def _links(profile: CostProfile) -> RenderableType:
    rows = [
        (
            name,
            _number(link.bandwidth_gb_s),
            _number(link.latency_us),
            _number(link.usable_fraction),
            _source(profile, link, "link", name, ", "),
        )
        for name, link in profile.data.link.items()
    ]
    columns = ("link", ">GB/s", ">latency us", ">usable", "from")
    return section("Links, one direction", table(columns, rows, wide="from"))


def _curves(profile: CostProfile) -> RenderableType:
    sections: dict[str, Mapping[str, Curve]] = {"efficiency": profile.data.efficiency, "op": profile.data.op}
    rows = [
        (
            f"{kind} {name}",
            curve.device or "all",
            curve.dtype or "all",
            _source(profile, curve, kind, name, ", "),
        )
        for kind, curves in sections.items()
        for name, curve in curves.items()
    ]
    return section("Measured", table(("what", "device", "type", "from"), rows, wide="from"))


def _optimizers(profile: CostProfile) -> RenderableType:
    rows = [
        (
            name,
            _number(optimizer.states) + (" (factored)" if optimizer.factored else ""),
            optimizer.state_dtype or "",
            _source(profile, optimizer, "optimizer", name, ", "),
        )
        for name, optimizer in profile.data.optimizer.items()
    ]
    columns = ("optimizer", "tensors a parameter", "type", "from")
    return section("Optimizers", table(columns, rows, wide="from"))


def _source(profile: CostProfile, found: Sourced, kind: str, name: str, between: str = "\n") -> str:
    """File and line of the table's first figure and, where the table says it, who measured it and when."""
    figures = (key for key in type(found).model_fields if key not in ("source", "date"))
    key = next((key for key in figures if getattr(found, key) is not None), "source")
    said = (
        short_origin(profile.origin(kind, name, key)),
        found.source and f"source {found.source}",
        found.date,
    )
    return between.join(text for text in said if text)


def _memory(device: Device) -> str:
    if device.memory_mib is not None:
        return size(int(device.memory_mib * MIB_BYTES))
    return "" if device.memory_gb is None else size(int(device.memory_gb * 1e9))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"

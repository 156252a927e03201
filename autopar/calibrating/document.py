"""What was measured as the tables of a cost profile, and as TOML."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from autopar.calibrating.measure import MIB, Measured, Points
from autopar.calibrating.probes import ATTENTION
from autopar.cost_model.collectives import inside_volume, rounds
from autopar.cost_model.dtypes import peak_key

# Table → name → key → value, as in a profile.
Document: TypeAlias = dict[str, dict[str, dict[str, Any]]]

DIGITS = 4
LEAST_US = 1e-3  # a profile's latency is above 0


def document(found: Measured, kind: str, device: str, *, known: bool, source: str, date: str) -> Document:
    """The profile's tables; ``device``: its name there, ``known``: to the built-in figures."""
    said = {"source": source, "date": date}
    peaks = {name: max(points.values()) for name, points in found.flops_s.items()}
    link = f"measured-{device}"
    figures: dict[str, Any] = {str(peak_key(name)): peak / 1e12 for name, peak in peaks.items()}
    figures |= {"memory_tb_s": found.copy_bytes_s / 1e12, "measured_copy_tb_s": found.copy_bytes_s / 1e12}
    figures |= {"mixed_giga_elements_s": found.mixed_elements_s / 1e9}
    figures |= {"measured_bf16_tflops": figures["bf16_tflops"]} if "bf16_tflops" in figures else {}
    figures |= {"memory_mib": found.memory_bytes // MIB} if kind == "cuda" else {"memory_gb": found.memory_bytes / 1e9}
    links: dict[str, dict[str, Any]] = {}
    if found.collective_s:
        links[link] = {**_link(found), **said}
        figures |= {"intra": link} | ({"inter": link} if kind == "cpu" else {})
    if not known and kind == "cuda":
        figures |= {"nics_per_node": 1}
    typed = {"device": device, "dtype": found.dtype, **said}  # other types take other times
    tables = {
        target: {"bytes": sorted(points), "seconds": [points[size] for size in sorted(points)], **typed}
        for target, points in found.seconds.items()
    }
    attention = sorted(found.attention_s)
    tables[ATTENTION] = {"flops": attention, "seconds": [found.attention_s[size] for size in attention], **typed}
    products = found.flops_s[found.dtype]
    return {
        "device": {device: {**figures, **said}},
        **({"link": links} if links else {}),
        "efficiency": {"matmul": {**_fractions(products, peaks[found.dtype]), **typed}},
        "op": tables,
    }


def _fractions(points: Points, peak: float) -> dict[str, list[float]]:
    sizes = sorted(points)
    return {"flops": sizes, "fraction": [min(1.0, points[size] / peak) for size in sizes]}


def _link(found: Measured) -> dict[str, float]:
    """Latency of a hop and bandwidth of a ring that fit all collectives best, errors counted as parts of the time."""
    rows, n = [], found.processes
    for kind, points in found.collective_s.items():
        rows += [(rounds(kind) * (n - 1) / s, inside_volume(kind, n) * size / s) for size, s in points.items()]
    latency_s, s_per_byte = _least_squares(np.array(rows))
    return {"bandwidth_gb_s": 1e-9 / s_per_byte, "latency_us": max(LEAST_US, latency_s * 1e6), "usable_fraction": 1.0}


def _least_squares(rows: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Two numbers of which each row's sum is nearest to 1, neither below 0."""
    both, *_ = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)
    latency, rate = rows.T
    if both[1] <= 0:  # all are starts: the largest of them says at least how fast the link is
        return float(latency.sum() / (latency @ latency)), float(1 / rate.max())
    return (float(both[0]), float(both[1])) if both[0] > 0 else (0.0, float(rate.sum() / (rate @ rate)))


def toml(tables: Document) -> str:
    """Text that ``CostProfile`` reads; numbers with four digits."""
    return "\n".join(_lines(tables))


def _lines(tables: Document) -> Iterator[str]:
    for section, named in tables.items():
        for name, entries in named.items():
            yield f'[{section}."{name}"]'
            yield from (f"{key} = {_text(value)}" for key, value in entries.items())
            yield ""


def _text(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_text(each) for each in value)}]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert isinstance(value, (int, float)) and math.isfinite(value)
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)


def rows(tables: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Single figures beside those of another profile: key, here, there."""
    for section in ("device", "link"):
        for name, entries in tables.get(section, {}).items():
            old = before.get(section, {}).get(name, {})
            for key, value in entries.items():
                if isinstance(value, (int, float)):
                    yield f"{section}.{name}.{key}", _text(value), _text(old[key]) if key in old else "–"

"""Cost-profile files: read strictly, lay one over another, hash the result.

A layer may hold any subset of the keys. A later layer wins key by key; a curve (``efficiency``, ``op``) is
replaced whole, since half of one curve and half of another mean nothing.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autopar.cost_model.profile_schema import ProfileData
from autopar.cost_model.toml_file import TomlFile, nearest, parse_toml, read_toml
from autopar.cost_model.toml_lines import KeyPath, line_of

BUILTIN_FILES = ("hardware.toml", "nccl.toml", "memory.toml")
_REPLACED_WHOLE = ("efficiency", "op")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One checked file: ``data`` holds only what the file says. ``label`` names it in listings."""

    label: str
    file: TomlFile
    data: dict[str, Any]


@functools.lru_cache(maxsize=1)
def builtin_layers() -> tuple[Layer, ...]:
    """The shipped files, in the order in which they are laid."""
    folder = importlib.resources.files("autopar.cost_model").joinpath("data")
    return tuple(
        _layer("built-in", parse_toml(folder.joinpath(name).read_text("utf-8"), f"built-in {name}"))
        for name in BUILTIN_FILES
    )


def read_layer(path: Path) -> Layer:
    """One profile file. Raises ``FileFormatError`` naming key and line of its first mistake."""
    return _layer(path.name, read_toml(path))


def _layer(label: str, file: TomlFile) -> Layer:
    data = file.check(ProfileData).model_dump(mode="json", exclude_unset=True)
    return Layer(label=label, file=file, data=data)


def merge(layers: Sequence[Layer]) -> ProfileData:
    """The layers as one profile; ``FileFormatError`` where a key names a device or link that none has."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for section, table in layer.data.items():
            merged[section] = _laid_over(merged.get(section, {}), table, deep=section not in _REPLACED_WHOLE)
    profile = ProfileData.model_validate(merged)
    _check_names(profile, layers)
    return profile


def _laid_over(below: dict[str, Any], above: dict[str, Any], *, deep: bool) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        both_tables = isinstance(old, dict) and isinstance(value, dict)
        result[key] = _laid_over(old or {}, value, deep=True) if deep and both_tables else value
    return result


def _check_names(profile: ProfileData, layers: Sequence[Layer]) -> None:
    used: list[tuple[KeyPath, str | None, Sequence[str]]] = []
    for name, device in profile.device.items():
        used.append((("device", name, "intra"), device.intra, list(profile.link)))
        used.append((("device", name, "inter"), device.inter, list(profile.link)))
    for section, curves in (("efficiency", profile.efficiency), ("op", profile.op)):
        used += [
            ((section, name, "device"), curve.device, list(profile.device)) for name, curve in curves.items()
        ]
    for path, name_used, known in used:
        if name_used is not None and name_used not in known:
            kind = "device" if path[-1] == "device" else "link"
            layer = layer_of(layers, path) or layers[-1]
            raise layer.file.error(
                path, f'is "{name_used}", which is no {kind} of the profile; {nearest(name_used, known)}'
            )


def layer_of(layers: Sequence[Layer], path: KeyPath) -> Layer | None:
    """The last layer that holds ``path``, which is the one that decides it."""
    for layer in reversed(layers):
        node: Any = layer.data
        for part in path:
            node = node.get(part) if isinstance(node, dict) else None
        if node is not None:
            return layer
    return None


def origin(layers: Sequence[Layer], path: KeyPath) -> str:
    """Where the number at ``path`` came from: ``built-in hardware.toml, line 12``."""
    layer = layer_of(layers, path)
    if layer is None:
        return "not in the profile"
    return f"{layer.file.name}, line {line_of(layer.file.lines, path)}"


def content_sha256(profile: ProfileData, *extra: str) -> str:
    """Hash of the canonical JSON of the merged data, and of ``extra`` strings where given."""
    data = profile.model_dump(mode="json", exclude_none=True)
    canonical = json.dumps([data, *extra], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()

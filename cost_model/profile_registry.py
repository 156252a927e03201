"""Find a cost profile: built-in, registered by another package, or a file."""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from autopar.cost_model.profile import BUILTIN_NAME, CostProfile
from autopar.cost_model.toml_file import nearest
from autopar.ir.errors import UsageError

ENTRY_POINT_GROUP = "autopar.cost_profiles"

ProfileSpec: TypeAlias = None | str | Path | CostProfile | type[CostProfile] | Callable[[], CostProfile]


@dataclass(frozen=True, kw_only=True)
class ProfileEntry:
    """One line of ``autopar profile list``."""

    name: str
    source: str


def list_profiles() -> tuple[ProfileEntry, ...]:
    """Every profile that has a name: the built-in one first, then the registered ones by name."""
    registered = sorted(_entry_points().items())
    return (
        ProfileEntry(name=BUILTIN_NAME, source="autopar"),
        *(ProfileEntry(name=name, source=entry.value) for name, entry in registered),
    )


def load_profile(profile: ProfileSpec = None) -> CostProfile:
    """The profile that ``profile`` means.

    None or ``"builtin"``: the shipped figures. A string: a name registered under the entry point
    ``autopar.cost_profiles``, else the path of a TOML file. A ``CostProfile``, a subclass of it, or a
    function that returns one: that. Raises ``UsageError`` for an unknown name, ``FileFormatError`` for a
    bad file.
    """
    if profile is None or profile == BUILTIN_NAME:
        return CostProfile()
    if isinstance(profile, CostProfile):
        return _hashable(profile)
    if isinstance(profile, Path):
        return CostProfile(profile)
    if isinstance(profile, str):
        return _named(profile)
    return _made(profile, what=repr(profile))


def _named(name: str) -> CostProfile:
    registered = _entry_points()
    if name in registered:
        return _registered(registered[name])
    path = Path(name)
    if path.is_file() or path.suffix == ".toml":
        return CostProfile(path)
    hint = nearest(name, [entry.name for entry in list_profiles()])
    raise UsageError(f"no cost profile is called {name!r} and no file has that path; {hint}")


def _registered(entry: importlib.metadata.EntryPoint) -> CostProfile:
    try:
        found = entry.load()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cost profile {entry.name!r} ({entry.value}) cannot be loaded: {error}") from error
    return _hashable(found) if isinstance(found, CostProfile) else _made(found, what=entry.value)


def _made(factory: object, *, what: str) -> CostProfile:
    """Call a class or a factory, which must need no arguments and return a ``CostProfile``."""
    if not callable(factory):
        raise UsageError(f"{what} is not a cost profile; expected a CostProfile, a subclass or a function")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise UsageError(f"{what} cannot be made without arguments: {error}; pass an instance") from None
    made = factory()
    if not isinstance(made, CostProfile):
        raise UsageError(f"{what} returned {type(made).__name__}, expected a CostProfile")
    return _hashable(made)


def _hashable(profile: CostProfile) -> CostProfile:
    """Prices are remembered by profile, so a dataclass that compares by value would fail later."""
    if type(profile).__hash__ is None:
        name = type(profile).__qualname__
        raise UsageError(f"{name} is not hashable; write it as @dataclass(eq=False), or define __hash__")
    return profile


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}

"""Finding a cost profile by name, path, class or function."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from autopar.cost_model import CostProfile, list_profiles, load_profile
from autopar.ir.errors import FileFormatError, UsageError


class Mine(CostProfile):
    """A profile that another package registers."""


class NeedsArgument(CostProfile):
    """Cannot be made by name."""

    def __init__(self, rate: float) -> None:
        super().__init__()


@dataclass
class ComparesByValue(CostProfile):
    """A dataclass that is not hashable."""

    rate: float = 1.0


INSTANCE = Mine()


def make() -> CostProfile:
    """A factory."""
    return Mine()


def make_nothing() -> int:
    """Not a factory of profiles."""
    return 3


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points as installed packages would give them."""
    group = "autopar.cost_profiles"
    objects = {"cls": "Mine", "inst": "INSTANCE", "func": "make", "bad": "make_nothing", "gone": "Absent"}
    points = [
        importlib.metadata.EntryPoint(name, f"{__name__}:{target}", group) for name, target in objects.items()
    ]

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        return [point for point in points if point.group == group]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


def test_none_and_builtin_are_the_shipped_figures(builtin: CostProfile) -> None:
    assert load_profile(None).sha256 == load_profile("builtin").sha256 == builtin.sha256


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", ["cls", "inst", "func"])
def test_a_registered_name_may_be_a_class_an_instance_or_a_function(name: str) -> None:
    assert isinstance(load_profile(name), CostProfile)
    assert type(load_profile(name)).__name__ == "Mine"


@pytest.mark.usefixtures("registered")
def test_the_listing_has_the_builtin_one_first_and_says_where_the_others_are_from() -> None:
    rows = [(entry.name, entry.source) for entry in list_profiles()]
    assert rows[0] == ("builtin", "autopar")
    assert ("cls", f"{__name__}:Mine") in rows


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("name", "message"), [("bad", "returned int"), ("gone", "cannot be loaded")])
def test_a_broken_registration_is_named(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_profile(name)


@pytest.mark.usefixtures("registered")
def test_an_unknown_name_is_a_usage_error_with_the_nearest_names() -> None:
    with pytest.raises(UsageError, match=r"'bultin' .*did you mean builtin"):
        load_profile("bultin")


def test_a_path_may_be_a_string_or_a_path(write: Callable[[str], Path]) -> None:
    path = write("[device.X]\nfp32_tflops = 1")
    assert load_profile(path).sha256 == load_profile(str(path)).sha256


def test_a_bad_file_is_a_file_error(write: Callable[[str], Path]) -> None:
    with pytest.raises(FileFormatError, match="line 1: devices is an unknown key"):
        load_profile(write("[devices.X]"))


def test_a_class_and_an_instance_are_taken_as_they_are() -> None:
    assert isinstance(load_profile(Mine), Mine)
    assert load_profile(INSTANCE) is INSTANCE


def test_a_class_that_needs_arguments_asks_for_an_instance() -> None:
    with pytest.raises(UsageError, match=r"without arguments: .*'rate'.*pass an instance"):
        load_profile(NeedsArgument)


def test_a_profile_that_cannot_be_hashed_is_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match=r"@dataclass\(eq=False\)"):
        load_profile(ComparesByValue())

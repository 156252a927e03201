"""What the tests of the cost model share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from autopar.cost_model import CostProfile

Write: TypeAlias = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write text to a TOML file and return its path."""

    def _write(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return _write


@pytest.fixture(scope="session")
def builtin() -> CostProfile:
    """The shipped figures."""
    return CostProfile()

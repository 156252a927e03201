"""What the tests of the command line share: running it in this process, a plan, a stand-in for the API."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import pytest

import autopar
from autopar.cli import main
from tests.cli.plans import example_plan


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """stdout as the one JSON document that it must be."""
        return json.loads(self.out)


Cli: TypeAlias = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run ``autopar WORDS`` without colours on 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: object) -> Result:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Result(code=code, out=out, err=err)

    return run


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A plan's file."""
    path = tmp_path / "plan.json"
    example_plan().save(path)
    return path


class Api(ModuleType):
    """Stands in for ``autopar.api``: remembers each call and answers with ``made`` or raises ``error``."""

    def __init__(self) -> None:
        super().__init__("autopar.api")
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.made = example_plan(search={"total_s": 1.5, "trace_s": 0.25, "solve_s": 1.0})
        self.error: BaseException | None = None

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        return self._called("plan", args, kwargs, self.made)

    def check_fit(self, *args: Any, **kwargs: Any) -> None:
        self._called("check_fit", args, kwargs, None)

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of the only call."""
        ((_, _, kwargs),) = self.calls
        return kwargs

    def _called(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> Any:
        self.calls.append((name, args, kwargs))
        if self.error is not None:
            raise self.error
        return answer


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    """The API replaced, so that commands are tested without a search."""
    stand_in = Api()
    monkeypatch.setitem(sys.modules, "autopar.api", stand_in)
    monkeypatch.setitem(vars(autopar), "api", stand_in)
    return stand_in

"""Strict TOML for what people write: every error names the file, the key, the line and what was expected."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from autopar.cost_model.toml_lines import KeyPath, key_lines, key_text, line_of
from autopar.ir.errors import FileFormatError, UsageError

MAX_FILE_BYTES = 1_000_000


class StrictTable(BaseModel):
    """A table of a file: no unknown key, no conversion between types, no NaN or infinity, never changed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


_Table = TypeVar("_Table", bound=StrictTable)


@dataclass(frozen=True, kw_only=True)
class TomlFile:
    """A parsed document: ``name`` for messages, plain ``data``, and the line of each key."""

    name: str
    data: dict[str, Any]
    lines: Mapping[KeyPath, int] = field(repr=False)

    def error(self, path: KeyPath, problem: str) -> FileFormatError:
        """The error ``FILE, line N: KEY PROBLEM``."""
        line = line_of(self.lines, path)
        where = f"{self.name}, line {line}" if line else self.name
        key = key_text(path)
        message = f"{where}: {key} {problem}" if key else f"{where}: {problem}"
        return FileFormatError(message, details={"file": self.name, "key": key, "line": line})

    def check(self, schema: type[_Table]) -> _Table:
        """The document as ``schema``, or ``FileFormatError`` for its first mistake."""
        try:
            return schema.model_validate(self.data)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            # A misspelt key is also a missing one: the misspelling is the mistake to name.
            first = next((found for found in errors if found["type"] != "missing"), errors[0])
            path = tuple(part for part in first["loc"] if part != "[key]")
            raise self.error(path, _problem(first, schema)) from None


def parse_toml(text: str, name: str) -> TomlFile:
    """Parse ``text``; ``FileFormatError`` with the line where it is not TOML."""
    try:
        data = tomllib.loads(text)
        return TomlFile(name=name, data=data, lines=key_lines(text))
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"{name}: not a TOML file: {error}", details={"file": name}) from None
    except RecursionError:
        raise FileFormatError(f"{name}: nested too deeply", details={"file": name}) from None


def read_toml(path: Path) -> TomlFile:
    """Read and parse a file; ``UsageError`` if it cannot be opened, ``FileFormatError`` if it is not TOML."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise FileFormatError(f"{path}: larger than {MAX_FILE_BYTES} bytes", details={"file": str(path)})
    try:
        return parse_toml(raw.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FileFormatError(f"{path}, line {line}: not UTF-8 text", details={"file": str(path)}) from None


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for a misspelt name: the nearest known ones, else all of them."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known: {', '.join(sorted(known)) or 'none'}"


def _problem(error: ErrorDetails, schema: type[BaseModel]) -> str:
    """What is wrong with the value and what was expected, without the key."""
    kind, context = error["type"], error.get("ctx", {})
    found = _shown(error["input"])
    if kind == "extra_forbidden":
        key = str(error["loc"][-1])
        return f"is an unknown key; {nearest(key, _known_keys(schema, error['loc'][:-1]))}"
    if kind == "missing":
        return "is missing; this table needs it"
    if kind == "finite_number":
        return f"is {found}, expected a finite number"
    if kind == "greater_than":
        return f"is {found}, expected a number greater than {context['gt']:g}"
    if kind == "value_error":
        return str(context["error"])
    expected = error["msg"].removeprefix("Input should be ")
    return f"is {found}, expected {expected}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a table"
    text = repr(value) if not isinstance(value, str) else f'"{value}"'
    return text if len(text) <= 60 else text[:57] + "..."


def _known_keys(schema: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The keys of the table at ``path`` below ``schema``."""
    current: Any = schema
    for part in path:
        fields = getattr(current, "model_fields", None)
        current = fields[part].annotation if fields else get_args(current)[-1]
        if NoneType in get_args(current):
            current = get_args(current)[0]
    return list(getattr(current, "model_fields", ()))

"""Where each key of a TOML document stands: path -> line, counted from 1.

``tomllib`` forgets positions, and an error has to name the line. This scanner walks a text that ``tomllib``
has accepted, so it may take the syntax for granted. A path is a tuple of keys and of indices into arrays:
``("nodes", 1, "gpus")``, ``("op", "aten.linear.default", "flops", 0)``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY = re.compile(r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_\-]+|[ \t.])+""")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:[^"\\]|\\.)*"' r"|'[^']*'", re.DOTALL
)
_BARE = re.compile(r"[^,\]}\n#]*")


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of every table, key and array element of ``text``, which must be valid TOML."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """The line of ``path``, or of the nearest table or array around it; None where even that is unknown."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None


def key_text(path: KeyPath) -> str:
    """``path`` as TOML writes it: ``op."aten.linear.default".flops[1]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_\-]+", part)
            text += ("." if text else "") + (part if bare else f'"{part}"')
    return text


class _Scanner:
    """One pass over the text; ``lines`` is the result."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self._counted_to = 0
        self._line = 1
        self._array_lengths: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        while True:
            self._skip(_BLANK)
            if self.at >= len(self.text):
                return
            if self._peek("[["):
                self.at += 2
                table = self._open_table(is_array=True)
            elif self._peek("["):
                self.at += 1
                table = self._open_table(is_array=False)
            else:
                self._pair(table)

    def _open_table(self, *, is_array: bool) -> KeyPath:
        line = self._current_line()
        keys = self._key()
        self.at += 2 if is_array else 1
        path: KeyPath = ()
        for position, key in enumerate(keys):
            path += (key,)
            self.lines.setdefault(path, line)
            if is_array and position == len(keys) - 1:
                self._array_lengths[path] = self._array_lengths.get(path, 0) + 1
            if path in self._array_lengths:
                path += (self._array_lengths[path] - 1,)
                self.lines.setdefault(path, line)
        return path

    def _pair(self, table: KeyPath) -> None:
        line = self._current_line()
        path = table
        for key in self._key():
            path += (key,)
            self.lines.setdefault(path, line)
        self.at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        if self._peek("["):
            self._list(path)
        elif self._peek("{"):
            self.at += 1
            while not self._closes("}"):
                self._pair(path)
        elif self._peek('"') or self._peek("'"):
            self._skip(_STRING)
        else:
            self._skip(_BARE)

    def _list(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        while not self._closes("]"):
            self.lines[(*path, index)] = self._current_line()
            self._value((*path, index))
            index += 1

    def _closes(self, bracket: str) -> bool:
        """Skip blanks and commas; true and past the bracket if it stands here."""
        self._skip(_BLANK)
        while self._peek(","):
            self.at += 1
            self._skip(_BLANK)
        if self._peek(bracket):
            self.at += 1
            return True
        return False

    def _key(self) -> list[str]:
        start = self.at
        self._skip(_KEY)
        keys: list[str] = []
        node: object = tomllib.loads(self.text[start : self.at] + "=0")
        while isinstance(node, dict):
            ((key, node),) = node.items()
            keys.append(key)
        return keys

    def _current_line(self) -> int:
        self._line += self.text.count("\n", self._counted_to, self.at)
        self._counted_to = self.at
        return self._line

    def _peek(self, token: str) -> bool:
        return self.text.startswith(token, self.at)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError(f"line {self._current_line()}: not TOML")
        self.at = match.end()

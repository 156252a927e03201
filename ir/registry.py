"""Rules that users register: rows beside the op table, checked as text when they are given.

They are global to the process, as torch's own operator registry is, and win over the table's rows. A plan
records those that it was made with, so that a process without them is refused (``Fingerprint.rules``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from autopar.ir.derive import DERIVATIONS
from autopar.ir.errors import UsageError
from autopar.ir.rules import Row, parse_side, partial_sets

REGISTERED: dict[str, Row] = {}

_WORD = re.compile(r"!?\*?[A-Za-z_]\w*|1|\(\s*!?[A-Za-z_]\w*(\s+!?[A-Za-z_]\w*)*\s*\)")
_PARTIAL = re.compile(r"\d+(\+\d+)*(\|\d+(\+\d+)*)*")


@dataclass(frozen=True)
class RuleText:
    """Tokens of a rule that was written out, and the operands and results they stand for."""

    operands: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]


def register(row: Row, *, builtin: Collection[str], override: bool) -> None:
    """Let ``row`` be the rule of its operation from now on.

    ``builtin``: operations of the op table, which only ``override`` replaces. A row for an operation that a user
    registered before replaces that one. Raises UsageError that quotes the rule for one that cannot be right.
    """
    if row.target in builtin and not override:
        raise UsageError(
            f"{row.target} has a rule of autopar's own; a wrong one in its place gives wrong gradients. "
            "Pass override=True to replace it all the same, with check=True to have it proven on numbers"
        )
    check_row(row)
    REGISTERED[row.target] = row


def check_row(row: Row) -> None:
    """Raise UsageError, quoting the rule, for what no operation could obey."""
    text = None if row.spec in DERIVATIONS else parse(row)
    if row.reduce not in ("sum", "max"):
        raise _wrong(row, f"reduce={row.reduce!r} is neither 'sum' nor 'max'")
    if row.backward < 0:
        raise _wrong(row, f"backward={row.backward} is negative")
    if row.partial and not _PARTIAL.fullmatch(row.partial):
        raise _wrong(row, f"partial={row.partial!r} is not positions of operands such as '0', '0|1' or '0+1'")
    if text is None:
        return
    for index in [i for members in partial_sets(row.partial) for i in members]:
        if index >= len(text.operands):
            raise _wrong(row, f"partial={row.partial!r} names operand {index}, the rule has {len(text.operands)}")
    for kept in row.saves:
        if isinstance(kept, int) and kept >= len(text.operands):
            raise _wrong(row, f"saves={row.saves!r} names operand {kept}, the rule has {len(text.operands)}")
    known = factors([*text.operands, *text.results])
    words = [word for word in row.flops.split() if not word.isdigit()]
    for word in (*words, *row.contiguous):
        if word not in known:
            raise _wrong(row, f"{word!r} is no factor of the rule; its factors are {', '.join(known)}")


def parse(row: Row) -> RuleText:
    """The tokens of a rule's text. Raises UsageError for a text that is none."""
    if row.spec.count("->") != 1:
        raise _wrong(row, "a rule has one '->' between operands and results, such as '*b k, n k -> *b n'")
    left, right = (parse_side(side) for side in row.spec.split("->"))
    for tensor in (*left, *right):
        for at, word in enumerate(tensor):
            if not _WORD.fullmatch(word):
                raise _wrong(row, f"{word!r} is no dim: a name, !name, *name, (major minor) or 1")
            if "*" in word and at > 0:
                raise _wrong(row, f"{word!r} stands for leading dims: it comes first in its tensor")
        repeated = [name for name in factors([tensor]) if _names([tensor]).count(name) > 1]
        if repeated:
            raise _wrong(row, f"{repeated[0]!r} stands twice in one tensor; a part of a diagonal is no part")
    whole = {word.lstrip("!") for tensor in (*left, *right) for word in _words([tensor]) if word.startswith("!")}
    for name in factors(right):
        if name not in factors(left) and name not in whole:
            raise _wrong(row, f"{name!r} stands in the results alone: whole operands give all of it; write '!{name}'")
    return RuleText(left, right)


def factors(tensors: Iterable[tuple[str, ...]]) -> list[str]:
    """Names of the factors in order of first appearance, ``*`` with its star."""
    return list(dict.fromkeys(_names(tensors)))


def _words(tensors: Iterable[tuple[str, ...]]) -> list[str]:
    return [word for tensor in tensors for token in tensor for word in token.strip("()").split()]


def _names(tensors: Iterable[tuple[str, ...]]) -> list[str]:
    return [word.lstrip("!") for word in _words(tensors) if word != "1"]


def described(row: Row) -> str:
    """All that a plan depends on, as text: equal texts are equal rules."""
    columns = {
        "partial": row.partial, "flops": row.flops, "backward": row.backward, "saves": row.saves,
        "op_class": row.op_class, "reduce": row.reduce, "contiguous": row.contiguous,
    }  # fmt: skip
    default = Row(target="", spec="")
    differ = [f"{key}={value!r}" for key, value in columns.items() if value != getattr(default, key)]
    return ", ".join([row.spec, *differ])


def _wrong(row: Row, problem: str) -> UsageError:
    return UsageError(
        f"rule {row.spec!r} for {row.target}: {problem}", details={"target": row.target, "rule": row.spec}
    )

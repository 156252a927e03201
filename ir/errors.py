"""The errors a user can meet, one class per mistake, each with the exit code of the command line.

Every layer raises these; ``autopar.errors`` is where users import them from. A message says what
happened, where (parameter, module, key or file) and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping


class AutoparError(Exception):
    """Base of all errors that autopar raises on purpose.

    ``details`` holds the same facts as the message, as plain data for ``--json``.
    """

    exit_code = 1

    def __init__(self, message: str, *, details: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.details: dict[str, object] = dict(details or {})


class UsageError(AutoparError):
    """An argument has a wrong value or names something that does not exist."""

    exit_code = 2


class TraceError(AutoparError):
    """The model cannot be traced: names the module and the source line."""

    exit_code = 3


class UnsupportedError(TraceError):
    """The model was traced but holds something that autopar refuses to run."""


class RuleError(UsageError):
    """A rule given to ``register_rule`` is wrong on numbers: names the factor and what differs."""


class InfeasibleError(AutoparError):
    """No plan keeps every limit: says what is needed against what there is."""

    exit_code = 4


class LimitReachedError(AutoparError):
    """The time limit ended the search before any plan was found."""

    exit_code = 5


class FileFormatError(AutoparError):
    """A plan, profile or cluster file is malformed: names the key and the line."""

    exit_code = 6


class MismatchError(AutoparError):
    """A plan does not fit the model, the cluster or the other ranks: shows the difference."""

    exit_code = 6


class ProbeError(AutoparError):
    """A measurement on this machine failed."""

    exit_code = 7


class VerificationError(AutoparError):
    """A sharded run differs from the single-device run: names the first tensor."""

    exit_code = 8


class IRError(AutoparError):
    """An internal invariant of the IR is broken: shows the node. A defect of autopar."""


class IslandWarning(UserWarning):
    """An operation has no sharding rule, so every device does all of its work: names it and the rule to write."""

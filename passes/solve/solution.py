"""What the solver answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["optimal", "feasible", "infeasible", "dominated", "unknown"]

CallRuns = tuple[tuple[int, tuple[int, ...]], ...]
"""Run-length encoded calls of one chain, first call first: (repeat, value of every block variable)."""


@dataclass(frozen=True, kw_only=True)
class Solution:
    """An assignment with its exact numbers, and proven bounds on every other assignment.

    optimal     objective - bound is within the gap that was asked for
    feasible    the limits of effort ended the search earlier
    dominated   ``bound_ns`` reached the upper bound that was given; the assignment may be missing
    infeasible  proven: ``least_bytes`` > memory, or no assignment avoids FORBIDDEN (then none is given)
    unknown     nothing that fits was found and nothing proves that nothing does

    Of infeasible and unknown problems the assignment is the one of least memory that was found.
    ``found`` is False, and the numbers are 0, when there is no assignment at all. ``bytes`` includes the
    largest transient; ``least_bytes`` is proven to be no more than any assignment needs (exact enough to
    report where memory binds, else a sum of smallest entries). ``free_bound_ns`` bounds the objective under
    any memory limit: where it is ``bound_ns``, more memory would prove nothing better. ``price``: what a byte
    was worth, in ns.
    """

    status: Status
    found: bool
    objective_ns: int
    bound_ns: int
    free_bound_ns: int
    bytes: int
    transient_bytes: int
    least_bytes: int
    root: tuple[int, ...]
    calls: tuple[CallRuns, ...]
    evaluations: int
    variables: int
    columns: int
    price: float
    closed_by: Literal["elimination", "master", "none"]

    @property
    def gap(self) -> float:
        """(objective - bound) / objective; 0 where that is undefined."""
        return (self.objective_ns - self.bound_ns) / self.objective_ns if self.objective_ns > 0 else 0.0

"""Solve a ``Problem``: the best assignment, a proven lower bound, and the gap between them.

1. ``lagrangian``: eliminate exactly at a few multipliers (``relax``, ``eliminate``, ``chain``). Where memory
   is ample and traffic hides, the first one is already optimal.
2. ``pool``, ``columns``: list the choices of each instance that can still be part of something better.
3. ``master``: OR-tools picks counts of them; as the list is complete up to ``cut``, its bound and ``cut``
   bound the whole problem.

``solver`` does so for a problem as a whole, ``split`` for one state after the other of what many calls share;
``listed`` bounds one whose segments share nothing but memory.
All limits are counts of work, so that equal problems have equal answers. ``check`` recomputes every answer.
"""

from __future__ import annotations

import math

from autopar.passes.problem import Problem, verify_problem
from autopar.passes.solve.listed import listed_bound_ns
from autopar.passes.solve.model import Model, model_holding
from autopar.passes.solve.progress import CLOSE
from autopar.passes.solve.refined import NEARLY, refined_bound_ns
from autopar.passes.solve.solution import CallRuns, Solution, Status
from autopar.passes.solve.solver import Solver
from autopar.passes.solve.split import SplitSolver, is_wide
from autopar.passes.solve.staged import Costs, Places, staged_bound_ns, undivided_bound_ns
from autopar.passes.solve.states import apart

__all__ = [
    "CLOSE",
    "NEARLY",
    "AnySolver",
    "CallRuns",
    "Costs",
    "Model",
    "Places",
    "Solution",
    "Status",
    "apart",
    "listed_bound_ns",
    "model_holding",
    "refined_bound_ns",
    "solve",
    "solver_of",
    "staged_bound_ns",
    "undivided_bound_ns",
]  # fmt: skip

AnySolver = Solver | SplitSolver


def solve(
    problem: Problem,
    *,
    memory_bytes: int,
    upper_bound_ns: int | None = None,
    gap: float = 1e-6,
    effort: int = 2,
    price: float = 0.0,
) -> Solution:
    """Find the fastest assignment of ``problem`` within ``memory_bytes``.

    ``effort`` (0 to 4) is how many rounds of columns and master may follow the elimination, each larger than
    the one before. The search ends early once objective - bound <= gap * objective, or the bound reaches
    ``upper_bound_ns``. ``price``: of memory (ns a byte) at the end of a similar problem, which saves work where memory
    binds here too. Raises ``IRError`` for a malformed problem and ``LimitReachedError`` for one that is too
    entangled to eliminate.
    """
    verify_problem(problem)
    made = solver_of(problem, memory_bytes=memory_bytes, upper_bound_ns=upper_bound_ns, gap=gap, price=price)
    return made.solution(effort)


def solver_of(
    problem: Problem, *, memory_bytes: int, upper_bound_ns: int | None = None, gap: float = 1e-6, price: float = 0.0,
    most_joined: float = math.inf,
) -> AnySolver:  # fmt: skip
    """What solves a problem that is not malformed; more effort may be given to it later. Arguments, errors as those
    of ``solve``; ``most_joined``: entries that one elimination may join."""
    kind = SplitSolver if is_wide(problem) else Solver
    return kind(
        problem, memory_bytes=memory_bytes, upper_bound_ns=upper_bound_ns, gap=gap, price=price, most_joined=most_joined
    )

"""Prefer plans whose repeated layers are alike: they compile once and read as one line.

The solver lets every call of a block differ. Where memory binds it spends the last bytes on one odd layer,
which gains a millionth and costs the reader a page. There, if one of the calls' own choices serves all
calls within ``TOLERANCE`` of the objective and within memory, it is taken; the bound stays that of the
free problem, so the difference shows as gap. Where memory is ample the optimum stands as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autopar.ir.errors import IRError
from autopar.passes.problem import Chain, Problem
from autopar.passes.solve import Solution
from autopar.passes.solve.check import Totals, measure_assignment
from autopar.passes.solve.solution import CallRuns

TOLERANCE = 2e-3


def uniform(problem: Problem, solution: Solution, memory_bytes: int) -> Solution:
    """The solution with alike calls where that costs next to nothing, else the solution itself."""
    if solution.objective_ns <= solution.free_bound_ns:
        return solution
    current = solution
    limit = round(solution.objective_ns * (1 + TOLERANCE))
    for index, chain in enumerate(problem.chains):
        if len(current.calls[index]) == 1:
            continue
        found: list[tuple[Totals, tuple[CallRuns, ...]]] = []
        for runs in _alike(chain, current.calls[index], current.root):
            calls = (*current.calls[:index], runs, *current.calls[index + 1 :])
            try:
                totals = measure_assignment(problem, current.root, calls)
            except IRError:
                continue  # these choices do not fit what comes in or what must go out
            if totals.bytes <= memory_bytes and totals.objective_ns <= limit:
                found.append((totals, calls))
        if found:
            totals, calls = min(found, key=lambda item: (sum(map(len, item[1])), item[0].objective_ns))
            current = replace(
                current, calls=calls, objective_ns=totals.objective_ns, bytes=totals.bytes,
                transient_bytes=totals.transient_bytes,
            )  # fmt: skip
    return current


def _alike(chain: Chain, runs: CallRuns, root: tuple[int, ...]) -> Iterator[CallRuns]:
    """All calls by the choices of one of them; the first takes its input as it comes from the root."""
    entering = [root[variable] for variable in chain.root_inputs]
    for _, values in sorted(dict.fromkeys(runs), key=lambda run: -run[0]):
        leaving = [values[variable] for variable in chain.outputs]
        first, rest = _entered(chain, values, entering), _entered(chain, values, leaving)
        if first == rest:
            yield ((chain.count, rest),)
        elif chain.count > 1:
            yield ((1, first), (chain.count - 1, rest))


def _entered(chain: Chain, values: tuple[int, ...], entering: list[int]) -> tuple[int, ...]:
    changed = list(values)
    for variable, value in zip(chain.inputs, entering, strict=True):
        changed[variable] = value
    return tuple(changed)

"""The multipliers at which known assignments prove most: a linear program over them.

Each assignment c of time t, bytes b and mean transients w[i] of the instances says that no multipliers prove more than

    z  <=  t + lambda (b - memory_bytes) + sum over i of beta[i] w[i],    beta = lambda alpha,  sum of beta = lambda

so the multipliers of largest z are where to look next, and z is what they may prove at most (Kelley's cutting planes).
Where z has no limit, some weights make all that is known too large: what is then the least decides.
"""

from __future__ import annotations

from collections.abc import Iterable

from ortools.linear_solver import pywraplp

from autopar.passes.solve.choice import Candidate, Multipliers


def steepest(known: Iterable[Candidate], instances: int, memory_bytes: int) -> tuple[Multipliers, float]:
    """The multipliers, and the nanoseconds, or bytes where time does not count, that they prove at most.

    Requires: some candidate is known.
    """
    cuts = sorted({(c.time, c.held - memory_bytes, c.mean_works) for c in known})
    even = Multipliers(time=0.0, memory=1.0, weights=(1 / instances,) * instances)
    return _best(cuts, instances, time=1.0) or _best(cuts, instances, time=0.0) or (even, 0.0)


def _best(
    cuts: list[tuple[int, int, tuple[float, ...]]], instances: int, *, time: float
) -> tuple[Multipliers, float] | None:
    """None where there is no limit, or numbers defeat the program."""
    program = pywraplp.Solver.CreateSolver("GLOP")
    low, unit = -program.infinity(), max(1.0, *(float(abs(more)) for _, more, _ in cuts))
    scale = max(1.0, *(float(t) for t, _, _ in cuts)) if time else 1.0
    z = program.NumVar(low, program.infinity(), "")
    price = program.NumVar(0.0 if time else 1.0, program.infinity() if time else 1.0, "")
    weights = [program.NumVar(0.0, program.infinity(), "") for _ in range(instances)]
    program.Add(sum(weights) == price)
    for t, more, works in cuts:
        held = sum(weight * (work / unit) for weight, work in zip(weights, works, strict=True))
        program.Add(z <= time * t / scale + price * (more / unit) + held)
    program.Maximize(z)
    if program.Solve() != program.OPTIMAL:
        return None
    found = [max(0.0, weight.solution_value()) for weight in weights]  # a solution may be off by what rounding adds
    total = sum(found)
    parts = [part / total for part in found] if total > 0 else [1.0] + [0.0] * (instances - 1)
    memory = total * scale / unit if time else 1.0
    value = z.solution_value() * (scale if time else unit)
    return Multipliers(time=time, memory=memory, weights=tuple(parts)), value

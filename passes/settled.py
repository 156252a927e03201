"""What a solution of one candidate means: its placements, its program, and the memory that it really takes."""

from __future__ import annotations

from autopar.ir.program import Program
from autopar.passes.assignment import decode
from autopar.passes.bounds import Bounds
from autopar.passes.build import Encoded
from autopar.passes.conversions import Conversions
from autopar.passes.lower import lower
from autopar.passes.memory import Placed, walked
from autopar.passes.outer import Candidate
from autopar.passes.outputs import place_outputs
from autopar.passes.pricing import Pricing
from autopar.passes.solve import Solution
from autopar.passes.uneven import uneven

WIDEST = 8  # bytes of an element at most


def settled(
    bounds: Bounds, encoded: tuple[Encoded, Pricing], candidate: Candidate, solution: Solution
) -> tuple[Placed, Program]:
    """Requires: ``solution.found``. Raises UnsupportedError where ranks cannot take unequal shares (``uneven.py``)."""
    (problem, pricing), model = encoded, bounds.model_of(candidate)
    conversions = Conversions(pricing)
    decoded = decode(model, problem, solution, pricing.mesh)
    assignment = place_outputs(model, decoded, bounds.positions, conversions)
    placed = Placed(
        encoded=problem, solution=solution, assignment=assignment, pricing=pricing, microbatches=candidate.count
    )
    program = lower(model, assignment, conversions, candidate.count)
    return placed, uneven(program, ()) if candidate.uneven else program


def peak_bytes(
    bounds: Bounds, encoded: tuple[Encoded, Pricing], candidate: Candidate, solution: Solution, *, enough: int
) -> int:
    """Most bytes that are held at once; the solver's sum where that is below ``enough`` at any rate.

    The sum leaves out what is sent of the root's gradients.
    """
    model = bounds.model_of(candidate)
    sent = sum(node.result.type.numel * WIDEST for node in model.graph.sources("param"))
    if solution.bytes + sent <= enough:
        return solution.bytes
    placed, program = settled(bounds, encoded, candidate, solution)
    return max(solution.bytes, sum(walked(model, placed, program).values()))

"""Why nothing fits: what is needed against what there is, and the largest tensors of the plan that came closest."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.ir.errors import InfeasibleError
from autopar.ir.graph import SOURCES
from autopar.ir.program import Program
from autopar.passes.build import Encoded, Model
from autopar.passes.memory import Placed, parameter_parts
from autopar.passes.outer import Candidate
from autopar.passes.patterns import starred
from autopar.passes.positions import all_graphs
from autopar.passes.pricing import Pricing, local_bytes
from autopar.passes.solve import Solution

LARGEST = 3  # of parameters, and of values that are computed


@dataclass(frozen=True, eq=False)
class Closest:
    """The placement that came closest to its limit. ``bytes``: of one device."""

    candidate: Candidate
    solution: Solution
    encoded: Encoded
    pricing: Pricing
    bytes: int


def shortfall(
    model: Model, closest: Closest, placed: Placed, program: Program, needed: int, budget: int
) -> InfeasibleError:
    """The error that names what is needed, the closest plan and its largest tensors, those of equal layers together."""
    mesh, count = closest.candidate.full, closest.candidate.count
    largest = [*_parameters(model, placed, program), *_values(program)]
    least = f"the {budget / 1e9:.4g} GB on each device that may be used"  # a byte more is all that is known
    lines = [
        f"every plan searched needs more than {told_apart(needed, budget) if needed > budget + 1 else least}.",
        f"closest: mesh({mesh}) with {count} microbatch(es) at {closest.bytes / 1e9:.4g} GB, of which",
        *(f"- {size / 1e9:.4g} GB {what}" for what, size in largest),
    ]
    return InfeasibleError(
        "\n".join(lines),
        details={
            "needed_bytes": needed, "budget_bytes": budget, "mesh": dict(mesh.axes), "num_microbatches": count,
            "fits_bytes": closest.bytes, "largest": dict(largest),
        },
    )  # fmt: skip


def told_apart(needed: int, budget: int) -> str:
    """Both in GB, in so many digits that they differ."""
    texts = ((f"{needed / 1e9:.{digits}g}", f"{budget / 1e9:.{digits}g}") for digits in range(4, 18))
    more, less = next(pair for pair in texts if pair[0] != pair[1] or needed == budget)
    return f"{more} GB on each device, {less} GB may be used"


def _parameters(model: Model, placed: Placed, program: Program) -> list[tuple[str, int]]:
    """The largest parameters, with gradients and the optimizer's state."""
    total: dict[str, int] = {}
    times: dict[str, int] = {}
    for parameter in program.parameters:
        held, _ = parameter_parts(model, placed, program, parameter).summed(root=not parameter.group)
        name = starred(parameter.fqn)
        total[name] = total.get(name, 0) + held
        times[name] = times.get(name, 0) + 1
    found = sorted(total, key=lambda name: (-total[name], name))[:LARGEST]
    return [(f"{name}{_times(times[name])}, its gradients and optimizer state", total[name]) for name in found]


def _values(program: Program) -> list[tuple[str, int]]:
    """The largest values that are computed, one of each shape: of one microbatch and one call."""
    found: dict[tuple[int, ...], tuple[str, int]] = {}
    for graph in all_graphs(program.graph):
        for node in graph.nodes:
            for value in node.results:
                if node.target in (*SOURCES, "call") or node.target.startswith("comm.") or value.layout is None:
                    continue
                shape, size = value.layout.local_shape(value.type.shape), local_bytes(value.layout, value.type)
                what = f"{node.target} {list(shape)} of {node.source or graph.name}, for each microbatch"
                found.setdefault(shape, (what, size))
    return sorted(found.values(), key=lambda item: (-item[1], item[0]))[:LARGEST]


def _times(count: int) -> str:
    return f" (×{count})" if count > 1 else ""

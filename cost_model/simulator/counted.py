"""What a plan's objective counts of a lowered program, part by part, to hold the simulator's figures against.

The objective takes a step apart into the root and the calls of blocks. Of each it adds up everything, and of the
communication of its parameters what is more than its computing can cover (``passes/problem.py``, formula 1):

    sum over instances of  S + max(0, H - f * C)

with S the operations, the collectives of the program and what comes once a step, H the gathers and reductions of each
parameter by itself, and C the operations. In pipelines every transfer counts at both of its ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from autopar.cost_model.simulator.holders import (
    GATHER,
    ROOT,
    SCATTER,
    cut_into,
    memory_ns,
    moves,
    stored_bytes,
    updated_bytes,
)
from autopar.cost_model.simulator.prices import Prices
from autopar.cost_model.simulator.recipes import Totals
from autopar.ir.program import Parameter, Program
from autopar.ir.types import DTYPE_BYTES


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Seconds of a step on one place. ``parameters``: what gathers and reductions are not hidden."""

    compute_s: float = 0.0
    collectives_s: float = 0.0
    parameters_s: float = 0.0
    sums_s: float = 0.0
    optimizer_s: float = 0.0
    transfers_s: float = 0.0

    @property
    def total_s(self) -> float:
        return float(sum(getattr(self, each.name) for each in fields(self)))

    def __add__(self, other: Counted) -> Counted:
        both = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        return Counted(**both)


@dataclass(frozen=True, kw_only=True)
class Instance:
    """The root or one call: its operations, and its parameters with their ZeRO level."""

    totals: Totals
    recompute: str | None
    parameters: Sequence[Parameter]
    zero: int
    root: bool


def instances(
    program: Program, main: Totals, blocks: Mapping[str, Totals], owners: Mapping[str, tuple[str, str]], *, piped: bool
) -> list[Instance]:
    """``owners``: call and block of the parameters that are not the root's. In pipelines levels above 1 cost as 1."""
    groups: dict[tuple[str, str], list[Parameter]] = {(ROOT, ROOT): []}
    for node in program.graph.nodes:
        if node.target == "call":
            for index in range(int(str(node.attr("count")))):
                groups[f"{node.results[0].name}/{index}", str(node.attr("block"))] = []
    for parameter in program.parameters:
        if parameter.trainable and not parameter.buffer:
            groups[owners.get(parameter.fqn, (ROOT, ROOT))].append(parameter)
    return [
        Instance(
            totals=main if name == ROOT else blocks[block], recompute=program.recompute.get(block), parameters=members,
            zero=min(program.zero.get(block, 0), 1 if piped else 3), root=name == ROOT,
        )
        for (name, block), members in groups.items()
    ]  # fmt: skip


def counted(found: Sequence[Instance], microbatches: int, optimizer: str, prices: Prices) -> Counted:
    """Of one program, by its instances."""
    total = Counted()
    for instance in found:
        each = instance.totals
        cheap, dear = 1 + (instance.recompute is not None), 1 + (instance.recompute == "full")
        compute = microbatches * (cheap * each.forward_ns + dear * each.dear_ns + each.backward_ns)
        sent = microbatches * (dear * each.sent_ns + each.sent_back_ns)
        hide = sums = update = 0
        for parameter in instance.parameters:
            zero = instance.zero if parameter.runtime_axes else 0
            hide += _moved_ns(parameter, zero, microbatches, prices, root=instance.root)
            part = -(-stored_bytes(parameter) // cut_into(parameter, zero, prices))
            sums += sum(prices.move_ns("all_reduce", part, prices.groups[axis]) for axis in parameter.step_axes)
            moved = updated_bytes(parameter, zero, optimizer, prices)
            update += memory_ns("optimizer", "optimizer", moved, parameter.type.dtype, prices)
        total += Counted(
            compute_s=compute / 1e9, collectives_s=sent / 1e9,
            parameters_s=max(0.0, hide - prices.overlap * compute) / 1e9, sums_s=sums / 1e9, optimizer_s=update / 1e9,
        )  # fmt: skip
    return total


def _moved_ns(parameter: Parameter, zero: int, microbatches: int, prices: Prices, *, root: bool) -> int:
    """Gathers and reductions of a parameter in a step, each by itself, gradients in the stored type."""
    stored = stored_bytes(parameter)
    used = stored // DTYPE_BYTES[parameter.type.dtype] * DTYPE_BYTES[parameter.compute_dtype]
    again = zero == 3 and not root
    total = 0
    for stream, kind, group, payload in moves(parameter.runtime_axes, parameter.inside, used, stored, zero, prices):
        times = 1
        if stream == GATHER:
            times = 2 * microbatches if again else 1
        elif stream == SCATTER and zero >= 2:
            times = microbatches
        total += times * prices.move_ns(kind, payload, group)
    return total

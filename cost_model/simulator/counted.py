"""What a plan's objective counts of a lowered program, part by part, to hold the simulator's figures against.

The objective takes a step apart into the root and the calls of blocks. Of each it adds up everything, and of the
communication of its parameters what is more than its computing can cover (``passes/problem.py``, formula 1):

    sum over instances of  S + max(0, N, N + E, N + E + A)

with S the operations, the collectives of the program and what nothing can cover; N, E and A are gathers and reductions,
each as if all that it goes with were as large, less a share of the operations: of the last backward with what comes
once a step, of the backwards before it where these have any, of all forwards that have any. Where parameters alone
travel between nodes, what operations send covers as well. In a pipeline the root is one instance for all places, and a
transfer counts at both of its ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, replace

from autopar.cost_model.simulator.holders import (
    GATHER,
    ROOT,
    SCATTER,
    cut_into,
    memory_ns,
    moves,
    owners,
    stored_bytes,
    updated_bytes,
)
from autopar.cost_model.simulator.scripts import Totals
from autopar.cost_model.simulator.stage import Stage
from autopar.cost_model.topology import crowded
from autopar.ir.program import Parameter, Program
from autopar.ir.types import DTYPE_BYTES


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Seconds of a step on one place. ``parameters``: gathers and reductions that are not hidden, without the root's.

    ``root_late_s``, ``root_earlier_s`` and ``root_ahead_s`` are the place's parts of the root's N, E and A,
    ``root_moved_s`` is what of them is traffic.
    """

    compute_s: float = 0.0
    collectives_s: float = 0.0
    parameters_s: float = 0.0
    sums_s: float = 0.0
    optimizer_s: float = 0.0
    added_s: float = 0.0
    transfers_s: float = 0.0
    root_late_s: float = 0.0
    root_earlier_s: float = 0.0
    root_ahead_s: float = 0.0
    root_moved_s: float = 0.0

    @property
    def total_s(self) -> float:
        return (
            self.compute_s + self.collectives_s + self.parameters_s + self.sums_s + self.optimizer_s + self.added_s
            + self.transfers_s
        )

    def __add__(self, other: Counted) -> Counted:
        both = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        return Counted(**both)


def _exposed_s(late_s: float, earlier_s: float, ahead_s: float) -> float:
    return max(0.0, late_s, late_s + earlier_s, late_s + earlier_s + ahead_s)


def settled(places: Sequence[Counted]) -> tuple[Counted, ...]:
    """The places with what the root does not hide, spread over those who cause it."""
    late_s, earlier_s, ahead_s, moved_s = (
        sum(getattr(each, f"root_{name}_s") for each in places) for name in ("late", "earlier", "ahead", "moved")
    )
    exposed_s = _exposed_s(late_s, earlier_s, ahead_s)
    return tuple(
        replace(each, parameters_s=each.parameters_s + (exposed_s * each.root_moved_s / moved_s if moved_s else 0.0))
        for each in places
    )


@dataclass(frozen=True, kw_only=True)
class _Instance:
    """The root or one call: its operations, and its parameters with their ZeRO level."""

    totals: Totals
    recompute: str | None
    parameters: Sequence[Parameter]
    zero: int
    root: bool


def counted(
    stage: Stage, known: AbstractSet[str] = frozenset(), outside: int | None = None, vectors: int | None = None
) -> Counted:
    """Of one program. ``known``: parameters that an earlier stage has too, which count there alone.

    ``outside``: trained parameters of the root of all stages; ``vectors``: of less than two dimensions of all of them;
    None: of this one.
    """
    program, prices = stage.program, stage.prices
    total, every = Counted(), len(vector_parameters(program)) if vectors is None else vectors
    for instance in _instances(stage, known):
        each = instance.totals
        cheap, dear = 1 + (instance.recompute is not None), 1 + (instance.recompute == "full")
        compute_s = program.microbatches * (cheap * each.forward_ns + dear * each.dear_ns + each.backward_ns) / 1e9
        sent_s = program.microbatches * (dear * each.sent_ns + each.sent_back_ns) / 1e9
        if instance.root and stage.before is not None:  # once, and nothing else goes on
            compute_s += (stage.before.totals.forward_ns + stage.before.totals.dear_ns) / 1e9
            sent_s += stage.before.totals.sent_ns / 1e9
        among = len(instance.parameters) if outside is None or not instance.root else outside
        hide_ns = earlier_ns = ahead_ns = behind_ns = sums_ns = update_ns = added_ns = 0
        for parameter in instance.parameters:
            zero = instance.zero if parameter.runtime_axes else 0
            moved = _moved_ns(parameter, zero, stage, root=instance.root, among=among)
            hide_ns, earlier_ns = hide_ns + moved[0], earlier_ns + moved[1]
            ahead_ns, behind_ns = ahead_ns + moved[2], behind_ns + moved[3]
            zero = min(zero, 1) if stage.piped else zero  # of memory and traffic but the gathers
            part = -(-stored_bytes(parameter) // cut_into(parameter, zero, prices))
            with_it = every if _is_vector(parameter) else 1
            for axis in parameter.step_axes:
                sums_ns += -(-prices.move_ns("all_reduce", part * with_it, prices.groups[axis]) // with_it)
            added_ns += _added_ns(parameter, zero, stage)
            updated = updated_bytes(parameter, zero, stage.optimizer, prices)
            update_ns += memory_ns("optimizer", "optimizer", updated, parameter.type.dtype, prices)
        hide_s, cover_s, cover_ahead_s = hide_ns / 1e9, *_covers_s(instance, stage)
        befores = program.microbatches - 1 if instance.zero >= 2 else 0
        forwards = program.microbatches if instance.zero == 3 and not stage.piped else 1
        earlier_s, ahead_s = earlier_ns / 1e9 - befores * cover_s, ahead_ns / 1e9 - forwards * cover_ahead_s
        total += Counted(
            compute_s=compute_s, collectives_s=sent_s, sums_s=sums_ns / 1e9, optimizer_s=update_ns / 1e9,
            added_s=added_ns / 1e9,
            parameters_s=behind_ns / 1e9 + (0.0 if instance.root else _exposed_s(hide_s - cover_s, earlier_s, ahead_s)),
            root_late_s=hide_s - cover_s if instance.root else 0.0, root_earlier_s=earlier_s if instance.root else 0.0,
            root_ahead_s=ahead_s if instance.root else 0.0,
            root_moved_s=(hide_ns + earlier_ns + ahead_ns) / 1e9 if instance.root else 0.0,
        )  # fmt: skip
    return total


def _covers_s(instance: _Instance, stage: Stage) -> tuple[float, float]:
    """What one backward, with what it computes again, and one forward let travel of parameters."""
    each, share = instance.totals, stage.prices.overlap
    cheap, dear = int(instance.recompute is not None), int(instance.recompute == "full")
    aside = not any(parameter.inside for parameter in instance.parameters)
    sent = each.sent_aside_ns * aside
    back = share * (cheap * each.forward_ns + dear * each.dear_ns + each.backward_ns)
    back += aside * (dear * each.sent_aside_ns + each.sent_back_aside_ns)
    return back / 1e9, (share * (each.forward_ns + each.dear_ns) + sent) / 1e9


def _instances(stage: Stage, known: AbstractSet[str]) -> Iterator[_Instance]:
    program, owner_of = stage.program, owners(stage.program)
    groups: dict[tuple[str, str], list[Parameter]] = {(ROOT, ROOT): []}
    for node in program.graph.nodes:
        if node.target == "call":
            for index in range(int(str(node.attr("count")))):
                groups[f"{node.results[0].name}/{index}", str(node.attr("block"))] = []
    for parameter in program.parameters:
        if parameter.trainable and not parameter.buffer and parameter.fqn not in known:
            groups[owner_of.get(parameter.fqn, (ROOT, ROOT))].append(parameter)
    for (name, block), members in groups.items():
        yield _Instance(
            totals=stage.main.totals if name == ROOT else stage.blocks[block].totals,
            recompute=program.recompute.get(block), parameters=members, zero=program.zero.get(block, 0),
            root=name == ROOT,
        )  # fmt: skip


def _added_ns(parameter: Parameter, zero: int, stage: Stage) -> int:
    """Gradients of each microbatch added to those of the earlier ones: two read, one written."""
    stored, again = stored_bytes(parameter), stage.program.microbatches - 1
    used = stored // DTYPE_BYTES[parameter.type.dtype] * DTYPE_BYTES[parameter.compute_dtype]
    parts = cut_into(parameter, zero, stage.prices) if zero >= 2 else 1
    if not again:
        return 0
    moved = (2 * stored + used) // parts
    return again * memory_ns("aten.add_.Tensor", "pointwise", moved, parameter.type.dtype, stage.prices)


def _trained(program: Program) -> list[Parameter]:
    return [p for p in program.parameters if p.trainable and not p.buffer]


def _is_vector(parameter: Parameter) -> bool:
    return len(parameter.type.shape) < 2


def vector_parameters(program: Program) -> frozenset[str]:
    """Trained ones that are taken to be summed at once at the end of a step."""
    return frozenset(p.fqn for p in _trained(program) if _is_vector(p))


def root_parameters(program: Program) -> frozenset[str]:
    """Trained ones that belong to no call."""
    own = owners(program)
    return frozenset(p.fqn for p in _trained(program) if p.fqn not in own)


def _moved_ns(parameter: Parameter, zero: int, stage: Stage, *, root: bool, among: int) -> tuple[int, int, int, int]:
    """Its share of gathers and reductions in a step, if all ``among`` are as large, gradients in the stored type.

    What the last backward may hide, those before it, and all forwards; and what nothing does: the first gather and
    the last reduction of the root; in torch's pipelines reductions, which come when all has been computed, and gathers
    that are in the way of the first collectives of the backward that they are for.
    """
    prices = stage.prices
    stored = stored_bytes(parameter)
    used = stored // DTYPE_BYTES[parameter.type.dtype] * DTYPE_BYTES[parameter.compute_dtype]
    hidden = earlier = ahead = behind = 0
    for stream, kind, group, payload in moves(parameter.runtime_axes, parameter.inside, used, stored, zero, prices):
        ns = -(-prices.move_ns(kind, payload * among, group) // among)
        gathered, again = stream == GATHER, zero == 3 and not root
        many = stage.program.microbatches
        forwards = 0 if not gathered else many if again and not stage.piped else 1
        last = int(again or not gathered)
        before = many - 1 if (again if gathered else stream == SCATTER and zero >= 2 and not stage.piped) else 0
        if stage.piped and crowded(group, prices.groups):
            behind += (forwards + last + before) * ns
            continue
        earlier += before * ns
        if root:
            behind += (forwards + last) * ns
        elif stage.piped and not gathered:
            behind += last * ns
        else:
            hidden, ahead = hidden + last * ns, ahead + forwards * ns
    return hidden, earlier, ahead, behind

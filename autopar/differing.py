"""What two plans do differently, and what each difference costs. Needs the plans alone, and no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autopar.cost_model import Cluster, CostProfile, Group, axis_groups, collective_s, neighbours
from autopar.ir.plan import Collective, Plan

# What a plan decides, or was given: shown where it differs.
SETTINGS = (
    "model", "world_size", "optimizer", "mixed_precision", "schedule", "num_microbatches", "mesh", "zero", "hsdp",
    "recompute", "stages",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Difference:
    """``left``, ``right``: of the first plan and of the second, as text."""

    what: str
    left: str
    right: str


@dataclass(frozen=True, kw_only=True)
class Amount:
    """A figure of both plans, in seconds or bytes of one step on one device."""

    what: str
    left: float
    right: float


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """All collectives of one kind: what they send in a step, and how long they take, hidden or not."""

    kind: str
    axis: str
    phase: str
    left_bytes: int
    right_bytes: int
    left_s: float
    right_s: float


@dataclass(frozen=True, kw_only=True)
class Differences:
    """``time_s`` sums to the step time of each plan: its first row. ``traffic``: what costs most first."""

    settings: tuple[Difference, ...]
    time_s: tuple[Amount, ...]
    memory_bytes: tuple[Amount, ...]
    placements: tuple[Difference, ...]
    storage: tuple[Difference, ...]
    traffic: tuple[Traffic, ...]

    @property
    def same(self) -> bool:
        """Whether the plans do the same."""
        return not (self.settings or self.placements or self.storage or self.traffic)

    def document(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def differences(left: Plan, right: Plan, profile: CostProfile | None = None) -> Differences:
    """``profile``: what collectives are priced by; the built-in figures if None."""
    profile = CostProfile() if profile is None else profile
    return Differences(
        settings=tuple(_settings(left, right)), time_s=tuple(_times(left, right)),
        memory_bytes=tuple(_memory(left, right)), placements=tuple(_mapping(left.placements, right.placements)),
        storage=tuple(_mapping(left.storage, right.storage)),
        traffic=tuple(_traffic(left, right, profile)),
    )  # fmt: skip


def _settings(left: Plan, right: Plan) -> Iterator[Difference]:
    machines = str(Cluster.from_dict(left.cluster)), str(Cluster.from_dict(right.cluster))
    if left.cluster != right.cluster:
        yield Difference(what="cluster", left=_rated(left, machines[0]), right=_rated(right, machines[1]))
    if left.memory.budget_bytes != right.memory.budget_bytes:
        texts = (f"{plan.memory.budget_bytes / 1e9:.4g} GB" for plan in (left, right))
        yield Difference(what="memory budget", left=next(texts), right=next(texts))
    yield from _mapping(
        {f"input {name}": {"": text} for name, text in left.fingerprint.inputs.items()},
        {f"input {name}": {"": text} for name, text in right.fingerprint.inputs.items()},
    )
    if left.shares != right.shares:
        texts = (plan.shares_text or "equal" for plan in (left, right))
        yield Difference(what="shares", left=next(texts), right=next(texts))
    for name in SETTINGS:
        mine, theirs = getattr(left, name), getattr(right, name)
        if mine != theirs:
            yield Difference(what=name.replace("_", " "), left=_text(mine), right=_text(theirs))


def _rated(plan: Plan, machines: str) -> str:
    rate = plan.cluster["network"].get("bandwidth_bytes_s")
    return machines if rate is None else f"{machines}@{rate / 1e9:g}GB/s"


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name or 'rest'} {_text(each)}" for name, each in value.items()) or "none"
    if isinstance(value, tuple):
        return f"cut before {', '.join(stage.where for stage in value)}" if value else "one"
    return "none" if value is None else str(value)


def _times(left: Plan, right: Plan) -> Iterator[Amount]:
    yield Amount(what="step time", left=left.objective_s, right=right.objective_s)
    for part in ("compute", "exposed_comm", "bubble"):
        what = part.replace("exposed_comm", "exposed communication").replace("bubble", "pipeline bubble")
        yield Amount(what=what, left=getattr(left.step_time_s, part), right=getattr(right.step_time_s, part))


def _memory(left: Plan, right: Plan) -> Iterator[Amount]:
    yield Amount(what="peak", left=max(left.memory.peak_bytes), right=max(right.memory.peak_bytes))
    for part in dict.fromkeys((*left.memory.parts, *right.memory.parts)):
        amount = Amount(what=part, left=left.memory.parts.get(part, 0), right=right.memory.parts.get(part, 0))
        if amount.left or amount.right:
            yield amount


def _mapping(left: Mapping[str, Mapping[str, str]], right: Mapping[str, Mapping[str, str]]) -> Iterator[Difference]:
    """Axes on which nothing is split say nothing."""
    for name in dict.fromkeys((*left, *right)):
        texts = [
            " ".join(f"{axis}:{text}" if axis else text for axis, text in each[name].items() if text != "R") or "R"
            if name in each else "none"
            for each in (left, right)
        ]  # fmt: skip
        if texts[0] != texts[1]:
            yield Difference(what=name, left=texts[0], right=texts[1])


def _traffic(left: Plan, right: Plan, profile: CostProfile) -> list[Traffic]:
    sums = [_sums(plan, profile) for plan in (left, right)]
    found = []
    for key in dict.fromkeys((*sums[0], *sums[1])):
        (left_bytes, left_s), (right_bytes, right_s) = (each.get(key, (0, 0.0)) for each in sums)
        if (left_bytes, left_s) != (right_bytes, right_s):
            kind, axis, phase = key
            found.append(Traffic(
                kind=kind, axis=axis, phase=phase, left_bytes=left_bytes, right_bytes=right_bytes, left_s=left_s,
                right_s=right_s,
            ))  # fmt: skip
    return sorted(found, key=lambda t: (-abs(t.right_s - t.left_s), t.kind, t.axis, t.phase))


def _sums(plan: Plan, profile: CostProfile) -> dict[tuple[str, str, str], tuple[int, float]]:
    """(kind, axis, phase) → bytes and seconds of a step."""
    cluster = Cluster.from_dict(plan.cluster)
    groups = axis_groups([(axis, plan.mesh[axis]) for axis in plan.axes], cluster)
    found: dict[tuple[str, str, str], tuple[int, float]] = {}
    for each in plan.collectives:
        size, duration_s = found.get(key := (each.kind, each.axis, each.phase), (0, 0.0))
        one_s = _one_s(each, groups, cluster, profile)
        found[key] = size + each.bytes * each.count, duration_s + each.count * one_s
    return found


def _one_s(each: Collective, groups: Mapping[str, Group], cluster: Cluster, profile: CostProfile) -> float:
    """0 where the group is no whole axis, as the halves of HSDP."""
    group = groups.get(each.axis)
    if group is None:
        return 0.0
    if each.kind == "send":
        return collective_s("broadcast", each.bytes, neighbours(group), cluster, profile)
    return collective_s(each.kind, each.bytes, group, cluster, profile)

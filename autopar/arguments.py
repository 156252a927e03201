"""The arguments of ``plan`` and ``parallelize``, checked once."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopar.cost_model import (
    Cluster,
    CostProfile,
    default_budget_bytes,
    load_profile,
    parse_bytes,
)
from autopar.ir.constraints import Constraint
from autopar.ir.errors import UsageError
from autopar.ir.pipeline import LOOPED, LOOPS, PIPELINE_AXIS, SCHEDULES
from autopar.ir.plan import RECIPE_NAMES

if TYPE_CHECKING:
    from autopar.ir.plan_origin import Asked
    from autopar.passes.candidate import Settings
    from autopar.passes.found import Limits

OPTIMIZERS = ("adamw", "adam", "sgd", "sgd_momentum", "adafactor")


@dataclass(frozen=True, kw_only=True, eq=False)
class Arguments:
    """What the user fixed; None leaves a choice to the search. Same names as ``autopar.plan``'s.

    ``memory_bytes``: of each device; ``memory_budget`` what the user said of it. ``sizes``: batch_size, seq_len and
    layers that a MODEL of the command line was given.
    """

    cluster: Cluster
    profile: CostProfile
    memory_bytes: int
    memory_budget: int | None = None
    constraints: tuple[Constraint, ...] = ()
    mesh: Mapping[str, int] | None = None
    optimizer: str = "adamw"
    mixed_precision: str | None = None
    num_microbatches: int | None = None
    schedule: str | None = None
    zero: int | None = None
    recompute: str | None = None
    loss_fn: Callable[..., Any] | None = None
    rng: str = "exact"
    time_limit: float = 60.0
    like: str | None = None
    name: str = "model"
    sizes: Mapping[str, int] = field(default_factory=dict)
    progress: Callable[[str], None] = lambda _: None

    @property
    def free(self) -> bool:
        """Whether nothing but the devices, their memory and the optimizer limits the search."""
        pins = (self.mesh, self.num_microbatches, self.schedule, self.zero, self.recompute, self.like)
        return not self.constraints and all(pin is None for pin in pins)

    @property
    def stages(self) -> int:
        """Pipeline stages that the pinned mesh and schedule ask for; 0 without a pipeline."""
        places = (self.mesh or {}).get(PIPELINE_AXIS, 1)
        return places * (LOOPS if self.schedule in LOOPED else 1) if places > 1 else 0

    def limits(self) -> Limits:
        from autopar.passes.found import Limits

        return Limits(
            memory_bytes=self.memory_bytes, mesh=self.mesh, microbatches=self.num_microbatches,
            schedule=self.schedule, like=self.like, time_limit_s=self.time_limit,
        )  # fmt: skip

    def settings(self, inputs: Mapping[str, tuple[int | None, int | None]]) -> Settings:
        """``inputs``: (batch dim, sequence dim) of each input."""
        from autopar.passes.candidate import Settings

        return Settings(
            inputs=inputs, optimizer=self.optimizer, zero=self.zero, recompute=self.recompute,
            constraints=self.constraints, schedule=self.schedule,
        )  # fmt: skip

    def asked(self) -> Asked:
        """As a plan keeps it."""
        from autopar.ir.plan_origin import Asked

        return Asked(
            mesh=None if self.mesh is None else dict(self.mesh), num_microbatches=self.num_microbatches,
            schedule=self.schedule, zero=self.zero, recompute=self.recompute,
            constraints=tuple(map(str, self.constraints)), memory_bytes=self.memory_budget,
            like=self.like, **self.sizes,
        )  # fmt: skip


def check(
    *, cluster: str | os.PathLike[str] | Cluster, profile: Any = None, mesh: Mapping[str, int] | None = None,
    constraints: Any = (), memory_budget: int | str | None = None, optimizer: str = "adamw",
    mixed_precision: str | None = None, num_microbatches: int | None = None, schedule: str | None = None,
    zero: int | None = None, recompute: str | None = None, loss_fn: Callable[..., Any] | None = None,
    rng: str = "exact", time_limit: float = 60.0, like: str | None = None, name: str = "model",
    sizes: Mapping[str, int] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Arguments:  # fmt: skip
    """Raise UsageError naming the argument, the value and what it may be; else the arguments, loaded."""
    from autopar.passes.candidates import MIXED_AXIS, SEARCHED_AXES

    wrong = [item for item in constraints if not isinstance(item, Constraint)]
    if wrong:
        raise UsageError(
            f"constraints holds {wrong[0]!r}; use autopar.replicate(...), autopar.split(...) and autopar.stage(...)"
        )
    _number("time_limit", time_limit)
    _number("memory_budget", memory_budget, none=True, text=True)
    _number("num_microbatches", num_microbatches, none=True, whole=True)
    sized: object = mesh
    if not (mesh is None or (isinstance(sized, Mapping) and all(isinstance(axis, str) for axis in sized))):
        raise UsageError(f"mesh={mesh!r}: it is a dict of sizes by axis, such as {{'dp': 4, 'tp': -1}}")
    for axis, size in (mesh or {}).items():
        _number(f"mesh[{axis!r}]", size, whole=True)
    for axis in [item.axis for item in constraints if item.axis is not None]:
        known = (*SEARCHED_AXES, MIXED_AXIS) if mesh is None else tuple(mesh)
        if axis not in known:
            raise UsageError(f"a constraint splits over axis={axis}, which the mesh has not: one of {', '.join(known)}")
    schedule = schedule.lower() if isinstance(schedule, str) else schedule
    _one_of("schedule", schedule, (None, *SCHEDULES))
    if schedule is not None and (mesh or {}).get(PIPELINE_AXIS, 1) == 1:
        raise UsageError(f"schedule={schedule!r} needs pipeline stages: give mesh a size of pp above 1")
    if schedule == "zero_bubble" and zero == 3:
        raise UsageError(
            "schedule='zero_bubble' with zero=3 gives wrong gradients in torch (parameters sharded again after the "
            "forward are not there for the split backward): take zero=2 or less, or another schedule"
        )
    _one_of("optimizer", optimizer, OPTIMIZERS)
    _one_of("mixed_precision", mixed_precision, (None, "bf16", "fp16"))
    _one_of("zero", zero, (None, 0, 1, 2, 3))
    _one_of("recompute", recompute, (None, "none", "selective", "full"))
    _one_of("rng", rng, ("exact", "fast"))
    _one_of("like", like, (None, *RECIPE_NAMES))
    pinned = [name for name, value in (("mesh", mesh), ("zero", zero), ("schedule", schedule)) if value is not None]
    if like is not None and pinned:
        raise UsageError(f"like={like!r} says mesh, ZeRO level and schedule: leave {' and '.join(pinned)} out")
    if num_microbatches is not None and num_microbatches < 1:
        raise UsageError(f"num_microbatches={num_microbatches}: it is 1 or more")
    if not time_limit > 0:
        raise UsageError(f"time_limit={time_limit}: it is a number of seconds above 0")
    found = load_profile(profile)
    machines = cluster if isinstance(cluster, Cluster) else Cluster.load(_path(cluster))
    budget = parse_bytes(memory_budget) if isinstance(memory_budget, str) else memory_budget
    budget = None if budget is None else int(budget)
    if budget is not None and budget <= 0:
        raise UsageError(f"memory_budget={memory_budget}: it is a number of bytes above 0")
    return Arguments(
        cluster=machines, profile=found, memory_bytes=budget or default_budget_bytes(machines, found),
        memory_budget=budget, sizes=dict(sizes or {}),
        constraints=tuple(constraints), mesh=None if mesh is None else dict(mesh), optimizer=optimizer,
        mixed_precision=mixed_precision,
        num_microbatches=num_microbatches, schedule=schedule, zero=zero, recompute=recompute, loss_fn=loss_fn, rng=rng,
        time_limit=time_limit, like=like, name=name, progress=progress,
    )  # fmt: skip


def _path(cluster: str | os.PathLike[str]) -> str | Path:
    return cluster if isinstance(cluster, str) else Path(cluster)


def _number(name: str, value: object, *, none: bool = False, whole: bool = False, text: bool = False) -> None:
    """``none``, ``text``: it may be None, or a text. Raises UsageError for what is no finite number."""
    if (none and value is None) or (text and isinstance(value, str)):
        return
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real) or not math.isfinite(value):
        raise UsageError(f"{name}={value!r}: it is a {'whole ' if whole else ''}number")


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed or isinstance(value, bool):
        raise UsageError(f"{name}={value!r}: one of {', '.join(map(repr, allowed))}")

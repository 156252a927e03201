"""The plan: everything the runtime needs, as data.

``plan.json`` is strict: an unknown key, a wrong type, NaN or infinity is refused with the key. Its hash is
taken over the canonical JSON (sorted keys, no spaces) without ``plan_sha256``; it holds no timings, so
that its bytes depend on the problem alone.
"""

from __future__ import annotations

import hashlib
import json
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from autopar.ir.errors import FileFormatError, MismatchError
from autopar.ir.plan_origin import Asked, Origin, Record
from autopar.ir.plan_whole import disagreements

SCHEMA_VERSION = 1
MAX_FILE_BYTES = 64 * 2**20
MAX_DEPTH = 16
RECIPE_NAMES = ("data_parallel", "zero3", "megatron", "gpipe", "hybrid_3d")

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Choices = dict[str, str]
Sizes = dict[str, Annotated[int, Field(ge=1)]]
Inside = Sizes


class BlockInfo(Record):
    """A repeated subgraph: how often it is called and how many operations it has."""

    name: str
    count: Count
    nodes: Count


class StageInfo(Record):
    """Where a pipeline stage begins: ``mark`` in the lowered program, ``where`` in the model's words.

    The mark is the first result of a node, for a repeated layer with the number of the call (``%name/call``).
    """

    mark: str
    where: str


class GraphInfo(Record):
    nodes: Count
    folded_nodes: Count


class StepTime(Record):
    """``compute``: with the optimizer's step, and gradients added up over microbatches. Their sum is the objective."""

    compute: Seconds
    exposed_comm: Seconds
    bubble: Seconds


class Memory(Record):
    budget_bytes: Count
    peak_bytes: tuple[Count, ...]
    parts: dict[str, Count]


class Collective(Record):
    """``bytes``: payload per rank before it; ``count``: per step. ``send`` is what goes to the next pipeline stage."""

    kind: str
    axis: str
    bytes: Count
    count: Count
    where: str
    phase: Literal["forward", "backward", "grad", "optimizer"]


class Island(Record):
    """``flops_share``: of the operations of one device's forward pass, of which an island does all.

    Nothing is known of its arithmetic: one operation is taken for each element that it reads or writes.
    """

    op: str
    count: Count
    flops_share: Annotated[float, Field(ge=0, le=1)]


class ProfileInfo(Record):
    """``priced``: for each class of operations, how its seconds were found."""

    name: str
    sha256: str
    priced: dict[str, tuple[str, ...]]


class Fingerprint(Record):
    """What the plan was made for; a mismatch is refused with the difference.

    ``parameters``: name → type text; ``inputs``: name → type text (global batch); ``rules``: operation of the
    graph → the rule that a user registered for it.
    """

    graph_sha256: str
    parameters: dict[str, str]
    inputs: dict[str, str]
    tied: tuple[tuple[str, ...], ...] = ()
    rules: dict[str, str] = Field(default_factory=dict)


ALL_RECIPES = "five standard recipes"
# Why a recipe has no figure that may have a plan.
LATE = "not worked out within the time limit"


class RecipeInfo(Record):
    """What a standard recipe takes on this model and cluster, by the same prices.

    ``objective_s``: with memory ignored where it does not fit, None where it cannot be placed at all; ``why`` says
    what is missing. ``mesh``, ``num_microbatches``: the best that it leaves open; not written where there is none.
    """

    objective_s: Seconds | None
    fits: bool
    why: str = ""
    mesh: Sizes = Field(default_factory=dict)
    num_microbatches: Annotated[int, Field(ge=1)] | None = None

    @property
    def late(self) -> bool:
        """Whether there was no time to find out."""
        return self.why == LATE

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """The mesh's axes, outermost first, which a file does not keep: those of recipes are pp, dp and tp."""
        order = {"pp": 0, "dp": 1}
        return tuple(sorted(self.mesh.items(), key=lambda item: (order.get(item[0], 2), item[0])))

    @model_serializer(mode="wrap")
    def _written(self, plainly: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_empty(plainly(self), "why", "mesh", "num_microbatches")


class Variant(Record):
    """One way to place a graph: a choice per node and axis, a storage per parameter, a mode.

    ``nodes``: first result of the node → axis → factor (``n``, ``n/3``), ``P0`` or ``-``.
    ``storage``: value of the parameter node → layout text. ``inputs``: a block's input → layout in which it comes.
    ``inside``: data axis → among how many neighbours along it ZeRO cuts parameters (HSDP); not written if empty.
    """

    graph: str
    recompute: Literal["none", "selective", "full"]
    zero: Literal[0, 1, 2, 3]
    nodes: dict[str, Choices]
    storage: dict[str, str]
    inputs: dict[str, str]
    inside: Inside = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _written(self, plainly: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_empty(plainly(self), "inside")


class Assignment(Record):
    """``calls``: for each call node of the folded main graph (its first result), runs of variants in order."""

    variants: tuple[Variant, ...]
    main: Count
    calls: dict[str, tuple[tuple[Count, Count], ...]]


class Plan(Record):
    """See ``docs/architecture.md`` for each field; times are of one step over the global batch.

    ``axes`` are the mesh's axes, outermost first: keys of a JSON object have no order. ``shares``: data axis →
    microbatches of each rank along it, where they are not ``num_microbatches`` each. ``asked`` and ``origin``: plans
    of versions that did not keep them have none, and cannot be asked anything that needs a search.
    """

    schema_version: Literal[1] = 1
    model: str
    cluster: dict[str, Any]
    world_size: Count
    objective_s: Seconds
    lower_bound_s: Seconds
    gap: Annotated[float, Field(ge=0, le=1)]
    proven_optimal: bool
    status: str
    mesh: Sizes
    axes: tuple[str, ...]
    schedule: str | None = None
    num_microbatches: Annotated[int, Field(ge=1)]
    shares: dict[str, tuple[Annotated[int, Field(ge=1)], ...]] = Field(default_factory=dict)
    stages: tuple[StageInfo, ...] = ()
    optimizer: str
    mixed_precision: str | None
    rng: str = "exact"
    zero: dict[str, int]
    hsdp: dict[str, Inside] = Field(default_factory=dict)
    recompute: dict[str, str]
    step_time_s: StepTime
    memory: Memory
    blocks: tuple[BlockInfo, ...]
    graph: GraphInfo
    placements: dict[str, Choices]
    storage: dict[str, Choices]
    islands: tuple[Island, ...]
    collectives: tuple[Collective, ...]
    profile: ProfileInfo
    fingerprint: Fingerprint
    assignment: Assignment
    asked: Asked | None = None
    origin: Origin | None = None
    recipes: dict[str, RecipeInfo] = Field(default_factory=dict)
    plan_sha256: str = ""
    # how the search went; never saved
    search: dict[str, float] | None = Field(default=None, exclude=True)

    @model_validator(mode="after")
    def _inside_divides(self) -> Self:
        """HSDP is a matter of axes that the mesh has, and of plans without a pipeline."""
        for variant in self.assignment.variants:
            for axis, size in variant.inside.items():
                if self.mesh.get(axis, 1) % size:
                    raise ValueError(
                        f"{variant.graph} is cut among {size} neighbours along {axis}, of which the mesh has "
                        f"{self.mesh.get(axis, 1)}"
                    )
            if variant.inside and self.schedule is not None:
                raise ValueError(
                    f"{variant.graph} is cut inside nodes (HSDP) under schedule {self.schedule}: pipelines cut "
                    "parameters over all devices of an axis; make the plan again"
                )
        return self

    @model_validator(mode="after")
    def _recipes_known(self) -> Self:
        unknown = [name for name in self.recipes if name not in RECIPE_NAMES]
        if unknown:
            raise ValueError(f"recipe {unknown[0]}: the standard recipes are {', '.join(RECIPE_NAMES)}")
        return self

    @model_validator(mode="after")
    def _shares_add_up(self) -> Self:
        """Unequal shares are a matter of plans of one data axis that reduce gradients once a step."""
        for axis, counts in self.shares.items():
            size, all_counts = self.mesh.get(axis, 1), f"shares of {axis}: {list(counts)}"
            if axis != "dp" or set(self.mesh) != {"dp"}:
                raise ValueError(f"{all_counts}: only a mesh of the axis dp alone has unequal shares, not {self.mesh}")
            if len(counts) != size or sum(counts) != size * self.num_microbatches or len(set(counts)) == 1:
                raise ValueError(
                    f"{all_counts}: {size} numbers that differ and add up to {size * self.num_microbatches}, which is "
                    f"{self.num_microbatches} microbatches each, are expected"
                )
            levels = {variant.zero for variant in self.assignment.variants}
            if max(levels, default=0) > 1:
                raise ValueError(f"{all_counts}: with ZeRO {max(levels)} every microbatch communicates; 0 or 1 may be")
        return self

    @model_serializer(mode="wrap")
    def _written(self, plainly: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_empty(plainly(self), "hsdp", "shares", "asked", "origin", "recipes")

    def document(self) -> dict[str, Any]:
        """Plain data as saved, hash included."""
        data = self.model_dump(mode="json")
        data["plan_sha256"] = content_sha256(data)
        return data

    def to_bytes(self) -> bytes:
        """The file's bytes: the same for the same problem."""
        return (json.dumps(self.document(), indent=1, sort_keys=True, allow_nan=False) + "\n").encode()

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self.to_bytes())

    @property
    def sha256(self) -> str:
        return content_sha256(self.model_dump(mode="json"))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read and check a plan; raises FileFormatError naming the file and the key."""
        try:
            size = Path(path).stat().st_size
            data = Path(path).read_bytes() if size <= MAX_FILE_BYTES else b""
        except OSError as error:
            raise FileFormatError(f"{path}: cannot be read: {error.strerror}") from None
        if size > MAX_FILE_BYTES:
            raise FileFormatError(f"{path}: {size} bytes; a plan has at most {MAX_FILE_BYTES}")
        return cls.from_bytes(data, where=str(path))

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "plan") -> Plan:
        """Parse, check the schema, and check the hash against the content."""
        try:
            raw = json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_without_twice)
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{where}: not a JSON document: {error}") from None
        if _depth(raw) > MAX_DEPTH:
            raise FileFormatError(f"{where}: nested deeper than {MAX_DEPTH} levels")
        try:
            plan = cls.model_validate_json(json.dumps(raw))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise FileFormatError(f"{where}: {key or 'document'}: {first['msg']}") from None
        if plan.plan_sha256 != plan.sha256:
            raise MismatchError(
                f"{where}: plan_sha256 is {plan.plan_sha256[:12] or 'missing'}, the content hashes to "
                f"{plan.sha256[:12]}: the file was changed after it was written; make the plan again"
            )
        for why in disagreements(plan):
            raise FileFormatError(f"{where}: {why}; make the plan again")
        return plan

    @property
    def shares_text(self) -> str:
        """Microbatches of the ranks in order: ``8 ranks 5, 8 ranks 3``; empty where shares are equal."""
        runs = [(count, len(list(ranks))) for counts in self.shares.values() for count, ranks in groupby(counts)]
        return ", ".join(f"{ranks} rank{'s' * (ranks > 1)} {count}" for count, ranks in runs)

    def compared(self) -> str:
        """How the plan stands to the standard recipes, in words; empty where they were not priced."""
        if not self.recipes:
            return ""
        times = {
            name: found.objective_s for name in RECIPE_NAMES
            if (found := self.recipes.get(name)) is not None and found.fits and found.objective_s is not None
        }  # fmt: skip
        late = sum(found.late for found in self.recipes.values())
        known = f"{len(RECIPE_NAMES) - late} standard recipes known in time" if late else ALL_RECIPES
        if not times:
            return f"none of {known if late else f'the {known}'} fits"
        best = min(times, key=lambda name: times[name])
        ratio = times[best] / self.objective_s if self.objective_s else 1.0
        stands = f"{ratio:.2f}× faster than" if ratio > 1 else f"{1 / ratio:.2f}× slower than"
        return f"{'as fast as' if '1.00×' in stands else stands} the best of {known} ({best})"

    def explain(self) -> str:
        """A summary in words: mesh, time, memory, what bounds it, and how it stands to the standard recipes."""
        mesh = " × ".join(f"{axis} {size}" for axis, size in self.mesh.items()) or "one device"
        peak = max(self.memory.peak_bytes)
        part = self.step_time_s
        return "\n".join([
            f"{self.model} on {self.world_size} devices: {mesh}, {self.num_microbatches} microbatch(es)"
            + (f" on average: {self.shares_text}" if self.shares else ""),
            f"step {self.objective_s:.4g} s = compute {part.compute:.4g} + communication {part.exposed_comm:.4g}"
            f" + bubble {part.bubble:.4g}; no plan is faster than {self.lower_bound_s:.4g} s (gap {self.gap:.2%})",
            f"memory {peak / 1e9:.3g} GB of {self.memory.budget_bytes / 1e9:.3g} GB per device",
            *([self.compared()] if self.recipes else []),
        ])  # fmt: skip


def _without_empty(data: dict[str, Any], *later: str) -> dict[str, Any]:
    """Plain data without fields that came later, where they say nothing: older documents keep their bytes and hash."""
    return {name: value for name, value in data.items() if value or name not in later}


def content_sha256(data: dict[str, Any]) -> str:
    """Hash of a plan's document without its own hash."""
    rest = {key: value for key, value in data.items() if key != "plan_sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that a plan may hold")


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0

"""What a search may use, and what it found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.ir.mesh import Mesh
from autopar.passes.assignment import Assignment
from autopar.passes.build import Encoded, Model
from autopar.passes.pipelining import Arrangement, Shape
from autopar.passes.pricing import Pricing
from autopar.passes.shares import Paced
from autopar.passes.solve import Solution

UNLIMITED_BYTES = 10**15
UNREACHABLE_NS = 10**18  # what cannot be within memory


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the search may use. ``mesh`` pins axes (None: searched), ``microbatches`` their number.

    ``like``: a recipe (``recipes.py``) that says meshes, ZeRO level and schedule.
    """

    memory_bytes: int
    mesh: Mapping[str, int] | None = None
    microbatches: int | None = None
    schedule: str | None = None
    like: str | None = None
    time_limit_s: float = 60.0

    @property
    def quick(self) -> bool:
        """Whether few numbers of microbatches, and elimination alone for pipelines, are to do: a recipe is to compare
        with, and there are five of them."""
        return self.like is not None


@dataclass(frozen=True, kw_only=True)
class Tried:
    """An outer choice: no plan with it is faster than ``bound_ns``; ``objective_ns``: of the best that was found.

    ``uneven``: with unequal shares of the batch.
    """

    full: Mesh
    microbatches: int
    schedule: str | None
    bound_ns: int
    objective_ns: int | None
    uneven: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """The best plan and what was proven about all others. ``complete``: no candidate was left out.

    ``tried``: every outer choice that may be placed and fit, as far as it was looked into.

    ``model`` has the modes that the schedule leaves it. ``mesh`` is that of a stage where there is a ``pipeline``,
    ``full`` that of all processes; ``objective_ns`` is the time of the whole step. ``paced``: with unequal shares of
    the batch; then ``pricing`` is that of the device that ends last.
    """

    model: Model
    mesh: Mesh
    full: Mesh
    objective_ns: int
    pipeline: tuple[Shape, Arrangement] | None
    microbatches: int
    pricing: Pricing
    encoded: Encoded
    solution: Solution
    assignment: Assignment
    bound_ns: int
    complete: bool
    evaluations: int
    candidates: int
    variables: int
    tried: tuple[Tried, ...]
    paced: Paced | None = None

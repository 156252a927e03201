"""What a simulated step came to: when each stream of each place was busy with what, and where its time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from autopar.cost_model.simulator.counted import Counted

# What an event is for. A communication has the category of what asked for it.
CATEGORIES = ("forward", "backward", "recompute", "grad", "optimizer", "send")
COMPUTED = CATEGORIES[:-1]
# What the compute stream waits for: collectives of the program, parameters that are gathered, gradients that are
# reduced, gradients that are added up at the end of the step, and other places of the pipeline.
CAUSES = ("collectives", "gathers", "reductions", "sums", "places")
# How much a timeline tells, most first.
DETAILS = ("operations", "calls", "passes")
COMPUTE = "compute"


class Track(NamedTuple):
    """One stream of the device at one place of the pipeline (place 0 where there is none)."""

    place: int
    stream: str


class Event(NamedTuple):
    """``where``: the module, block call or holder that it belongs to. Events of a track nest or are disjoint."""

    track: Track
    name: str
    start_ns: int
    end_ns: int
    category: str
    where: str = ""


class Flow(NamedTuple):
    """From within an event of one track to within one of another that needed it."""

    source: Track
    leaves_ns: int
    target: Track
    arrives_ns: int


@dataclass(frozen=True, kw_only=True)
class Account:
    """Where the time of one place's compute stream went; all of it adds up to the step.

    ``busy_s`` by category, ``waits_s`` by cause, ``idle_s`` from its last work to the end of the step. ``moved_s``:
    time of all communication by cause, whether the compute stream waited for it or not.
    """

    place: int
    busy_s: Mapping[str, float]
    waits_s: Mapping[str, float]
    moved_s: Mapping[str, float]
    idle_s: float

    @property
    def exposed_s(self) -> float:
        """Waiting for communication within the place."""
        return sum(seconds for cause, seconds in self.waits_s.items() if cause != "places")

    @property
    def bubble_s(self) -> float:
        """Waiting for other places, and for the end of the step."""
        return self.waits_s["places"] + self.idle_s


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A step of every place. ``detail``: which of ``DETAILS`` the events tell; times do not depend on it.

    ``counted``: what a plan's objective counts of the same program, for each place.
    """

    step_s: float
    places: tuple[Account, ...]
    tracks: tuple[Track, ...]
    events: tuple[Event, ...]
    flows: tuple[Flow, ...]
    detail: str
    counted: tuple[Counted, ...]

    def mean_s(self, kind: str, *names: str) -> float:
        """Mean over the places of what ``busy_s``, ``waits_s`` or ``moved_s`` (``kind``) hold under ``names``."""
        found = [getattr(account, kind)[name] for account in self.places for name in names]
        return float(sum(found)) / len(self.places)

"""What was settled is bounded by all means where it makes a wide gap."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

from autopar.ir.mesh import Mesh
from autopar.passes.build import Encoded
from autopar.passes.found import Tried
from autopar.passes.helper import Answer
from autopar.passes.outer import Candidate, Rung
from autopar.passes.piped import Pipelines
from autopar.passes.pipelining import Shape, shapes
from autopar.passes.pricing import Pricing
from autopar.passes.standing import Standing

BEST_NS = 1_000_000


@dataclass(eq=False)
class Raising(Pipelines):
    """Every pipeline is bounded by what is asked for, up to ``most_ns`` of a step. ``raised``: those, in order."""

    most_ns: float = float(BEST_NS)
    raised: list[int] = field(default_factory=list)

    def _staged_ns(
        self, encoded: Encoded, pricing: Pricing, shape: Shape, enough_ns: int | None, *, thorough: bool = False
    ) -> int:
        assert enough_ns is not None and thorough
        self.raised.append(shape.microbatches)
        return int(min(enough_ns, self.most_ns / (shape.stretch / shape.places)))

    def _tied_ns(self, candidate: Candidate, shape: Shape) -> int:
        return 0


def pipelines(bounds: list[int], others: list[int], most_us: int = BEST_NS // 1000) -> Raising:
    """Settled pipelines with these bounds (us), with 4 microbatches, 8 and so on, and other plans with theirs."""
    full = Mesh((("pp", 2), ("dp", 2)))
    counts = tuple(4 * 2**at for at in range(len(bounds)))
    made = [
        Candidate(
            mesh=Mesh((("dp", 2),)), full=full, count=shape.microbatches, fewest=1, shape=shape, rung=Rung.LIMITED
        )
        for shape in shapes("1f1b", 2, counts, strict=True)
    ]  # fmt: skip
    assert len(made) == len(bounds)
    tried = [
        Tried(full=one.full, microbatches=one.count, schedule="1f1b", bound_ns=1000 * bound, objective_ns=2 * BEST_NS)
        for one, bound in zip(made, bounds, strict=True)
    ]
    tried += [
        Tried(full=full, microbatches=1, schedule=None, bound_ns=1000 * bound, objective_ns=None) for bound in others
    ]
    bounding = SimpleNamespace(again=lambda _: (None, None), asked=lambda _, work: work(), problems=0, price=0.0)
    standing = SimpleNamespace(tried=tried, best=SimpleNamespace(objective_ns=BEST_NS), bounds=bounding)
    found = Raising(cast(Standing, standing), most_ns=1000 * most_us)
    found.settled = dict(enumerate(made))
    return found


def prove(found: Raising, *, overdue: bool = False) -> list[int]:
    """Bounds of all that was tried, after, to the nearest us."""
    found.prove(lambda: overdue)
    return [round(one.bound_ns / 1000) for one in found.standing.tried]


def test_the_lowest_bounds_are_raised_as_long_as_they_make_the_gap() -> None:
    found = pipelines([900, 700, 995], [1100])
    assert prove(found) == [991, 991, 995, 1100]
    assert found.raised == [8, 4]  # 995 of 1000 is more than enough


def test_none_is_raised_below_another_bound() -> None:
    found = pipelines([900, 700], [800])
    assert prove(found) == [900, 991, 800]


def test_one_that_is_raised_no_further_ends_it() -> None:
    found = pipelines([900, 700], [], most_us=850)
    assert prove(found) == [900, 850]
    assert found.raised == [8]


def test_no_bound_falls() -> None:
    assert prove(pipelines([700], [], most_us=600)) == [700]


def test_nothing_is_raised_once_time_is_up() -> None:
    assert prove(pipelines([700], []), overdue=True) == [700]


def test_what_the_helper_has_raised_is_taken() -> None:
    """For the best plan's time alone, and it is no problem more."""
    found = pipelines([700], [])
    bounds, (candidate,) = found.standing.bounds, found.settled.values()
    asked_for: list[object] = []

    def asked(key: object, work: object) -> Answer:
        asked_for.append(key)
        bounds.problems += 1
        return Answer(800, 0, exact=True)

    bounds.asked = asked  # type: ignore[method-assign]
    assert [found.proven_ns(candidate, BEST_NS), found.proven_ns(candidate, 2 * BEST_NS)] == [800, 800]
    assert len(set(asked_for)) == 2
    assert (found.raised, bounds.problems) == ([], 0)
    assert found.proven_ns(replace(candidate, bound_ns=BEST_NS), BEST_NS // 2) == 0
    assert len(asked_for) == 2, "it was as high"

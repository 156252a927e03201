"""In which order a helper of a search raises bounds: before there is a plan, and once there is one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from autopar.ir.mesh import Mesh
from autopar.passes.climb import climb
from autopar.passes.helper import BusyError, Helper, Told
from autopar.passes.outer import Candidate, Rung

PLAN_NS = 100.0
LAST = Rung.LIMITED  # that is asked for, once a pipeline is bounded closely
ASKED_AGAIN = [rung for rung in Rung if Rung.POOLED < rung <= LAST]  # what it asks with a plan may differ


def candidate(axis: str, bound_ns: int = 0) -> Candidate:
    mesh = Mesh(((axis, 4),))
    return Candidate(mesh=mesh, full=mesh, count=1, fewest=1, bound_ns=bound_ns)


@dataclass(eq=False)
class Hearing(Helper):
    """A helper that hears of a plan as soon as it has nothing to do until then."""

    best: Told = field(default_factory=lambda: Told(math.inf))
    asked_for: list[tuple[str, Rung, bool]] = field(default_factory=list)
    busy: set[tuple[str, Rung]] = field(default_factory=set)  # the search is at these, until it has a plan

    def hear(self, timeout_s: float) -> bool:
        if timeout_s and math.isinf(self.best.best_ns):
            self.best = Told(PLAN_NS)
        return False

    def raised(self, one: Candidate) -> list[Candidate]:
        blind = math.isinf(self.best.best_ns)
        if one.rung == LAST:
            return []
        rung = Rung(one.rung + 1)
        if blind and (one.full.names[0], rung) in self.busy:
            raise BusyError
        self.asked_for.append((one.full.names[0], rung, blind))
        return [replace(one, rung=rung)]


def climbed(soon: list[Candidate], last: list[Candidate], busy: tuple[tuple[str, Rung], ...] = ()) -> Hearing:
    told = Hearing(busy=set(busy))
    climb(soon, last, told.raised, told)
    return told


def rungs(told: Hearing, axis: str, *, blind: bool) -> list[Rung]:
    return [rung for name, rung, before in told.asked_for if name == axis and before == blind]


def test_what_comes_last_is_held_where_a_plan_decides_what_is_asked() -> None:
    told = climbed([], [candidate("cp")])
    assert rungs(told, "cp", blind=True)[-1] == Rung.PRIME
    assert rungs(told, "cp", blind=False) == ASKED_AGAIN


def test_what_comes_soon_goes_on_before_there_is_a_plan_and_again_with_it() -> None:
    told = climbed([candidate("tp")], [candidate("cp")])
    upper = [rung for rung in Rung if Rung.PRIME < rung <= LAST]
    assert rungs(told, "tp", blind=True)[-len(upper) :] == upper
    assert rungs(told, "tp", blind=False) == ASKED_AGAIN
    order = [name for name, _, before in told.asked_for if before]
    assert order.index("tp") > max(at for at, name in enumerate(order) if name == "cp")


def test_what_the_search_is_at_is_taken_up_again() -> None:
    told = climbed([candidate("tp"), candidate("dp")], [], (("tp", Rung.PRIME), ("dp", Rung.FEWEST)))
    assert Rung.PRIME in rungs(told, "tp", blind=False)
    assert rungs(told, "tp", blind=False)[-1] == LAST
    assert rungs(told, "dp", blind=False)[0] == ASKED_AGAIN[0]  # anew, and once
    assert len(rungs(told, "dp", blind=False)) == len(set(rungs(told, "dp", blind=False)))


def test_what_is_no_faster_than_the_plan_is_left() -> None:
    told = climbed([candidate("tp", bound_ns=200)], [candidate("cp", bound_ns=50)])
    assert rungs(told, "tp", blind=False) == []
    assert rungs(told, "cp", blind=False)[-1] == LAST


def test_a_pipeline_whose_stages_the_search_has_bounded_is_bounded_closely_at_once() -> None:
    """Without the bounds between, and before what waits, though it had the lowest bound."""
    ahead = Hearing()
    pipeline, others = candidate("pp", bound_ns=10), [candidate("tp", bound_ns=60), candidate("cp", bound_ns=50)]
    known: list[str] = []

    def raised(one: Candidate) -> list[Candidate]:
        near = one.full.names == ("pp",) and one.rung + 1 >= Rung.STAGED
        return [replace(higher, bound_ns=90) if near else higher for higher in ahead.raised(one)]

    def hear(timeout_s: float) -> bool:
        ahead.best = Told(PLAN_NS)
        if len(ahead.asked_for) > 5 and not known:
            known.append("pp")
            return True
        return False

    ahead.hear = hear  # type: ignore[method-assign]
    ahead.best = Told(PLAN_NS)
    climb([pipeline, *others], [], raised, ahead, lambda one: one.full.names[0] in known)
    order = [name for name, _, _ in ahead.asked_for]
    first = order.index("pp")
    assert first >= 5
    assert rungs(ahead, "pp", blind=False) == [rung for rung in Rung if Rung.NOTHING < rung <= LAST]
    assert set(order[first : first + len(rungs(ahead, "pp", blind=False))]) == {"pp"}
    assert set(order[first:]) > {"pp"}


@dataclass(eq=False)
class Proving(Hearing):
    """A helper that notes what is asked of bounds that are close already."""

    best: Told = field(default_factory=lambda: Told(PLAN_NS))
    proven_after: dict[str, int] = field(default_factory=dict)

    def raised(self, one: Candidate) -> list[Candidate]:
        if one.rung == LAST:
            self.proven_after[one.full.names[0]] = len(self.asked_for)
        return super().raised(one)


def test_how_close_a_bound_is_comes_after_all_else() -> None:
    """It follows from a plan that may not be the best for long."""
    told = Proving()
    climb([candidate("dp", 90), candidate("tp", 10)], [candidate("cp", 50)], told.raised, told)
    assert told.proven_after == dict.fromkeys(("dp", "tp", "cp"), len(told.asked_for))


def test_each_of_several_begins_with_meshes_of_its_own() -> None:
    """And goes on with those of others."""
    orders = []
    for number in range(2):
        told = Hearing(best=Told(PLAN_NS), number=number, several=2)
        climb([candidate(axis) for axis in ("dp", "tp", "cp", "ep", "mixed")], [], told.raised, told)
        orders.append([*dict.fromkeys(axis for axis, *_ in told.asked_for)])
    assert {*orders[0]} == {*orders[1]}
    assert any({*orders[0][:own]} == {*orders[1][-own:]} for own in range(1, 5))
    assert orders[0] != orders[1]

"""A helper of a search answers what the search would have found, and nothing waits for one that does not."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Hashable
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Protocol

import pytest

import autopar
from autopar.models import resolve
from autopar.passes import search
from autopar.passes.helper import Answer, BusyError, Helper, Told

TEN = Answer(10, 1, exact=True)


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The helpers that were started."""
    pids: list[int] = []

    def fork() -> int:
        pid = original()
        if pid:
            pids.append(pid)
        return pid

    original = os.fork
    monkeypatch.setattr(os, "fork", fork)
    return pids


def all_ended(pids: list[int]) -> bool:
    """Whether none is left, not even one that nobody has waited for."""
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def never() -> Answer:
    pytest.fail("it was asked again")


def late(seconds: float) -> Answer:
    time.sleep(seconds)
    return TEN


def idle(here: Helper) -> None:
    time.sleep(600)


@pytest.mark.parametrize(
    ("name", "cluster", "batch", "budget", "helpers"),
    [
        ("llama3-8b", "2x8xH100-SXM", 64, None, 1),
        pytest.param("llama3-8b", "2x8xH100-SXM", 64, "6GB", 1, marks=pytest.mark.slow),
        pytest.param("llama3-8b", "2x8xH100-SXM", 64, "6GB", 2, marks=pytest.mark.slow),
        ("mixtral-8x7b", "1x8xH100-SXM", 16, None, 3),
    ],
)
def test_helpers_change_nothing_but_time(
    monkeypatch: pytest.MonkeyPatch, forked: list[int], name: str, cluster: str, batch: int, budget: str | None,
    helpers: int,
) -> None:  # fmt: skip
    answers: list[object] = []

    def asked(self: Helper, key: Hashable, work: Callable[[], Answer | None]) -> tuple[Answer | None, bool]:
        answer, others = original(self, key, work)
        answers.extend([key] * others)
        return answer, others

    original = Helper.asked
    monkeypatch.setattr(Helper, "asked", asked)
    monkeypatch.setattr(search, "WORTH_S", 0.0)
    monkeypatch.setattr(search, "LONG_S", 0.0)
    plans, problems = [], []
    for cores in (set(range(1 + helpers)), {0}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        model = resolve(f"zoo:{name}", batch_size=batch, seq_len=512, layers=4)
        plan = autopar.plan(
            model.model, model.example_inputs, cluster=cluster, mixed_precision="bf16", memory_budget=budget
        )
        assert plan.search is not None
        plans.append(plan.to_bytes())
        problems.append(len(answers))
        assert len(forked) == helpers
        assert all_ended(forked)
    assert plans[0] == plans[1]
    assert problems[0] == problems[1], "there was a helper where there is one core"
    assert answers, "the helper was of no use"


@pytest.mark.slow
def test_what_it_says_of_memory_is_all_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each such bound is worked out in a copy of the process, so that the search has nothing else of it."""
    asked_for: set[object] = set()

    def asked(self: Helper, key: Hashable, work: Callable[[], Answer | None]) -> tuple[Answer | None, bool]:
        if not isinstance(key, tuple) or key[0] not in ("priced", "staged"):
            return original(self, key, work)
        asked_for.add(key[0])
        ours, other = Pipe()
        if os.fork() == 0:
            try:
                other.send(work())
            finally:
                os._exit(0)
        found = ours.recv()
        os.wait()
        return (found, True) if found else original(self, key, work)

    original = Helper.asked
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})  # no other helper
    plans, counts = [], []
    for _ in range(2):
        model = resolve("zoo:llama3-8b", batch_size=64, seq_len=512, layers=8)
        plan = autopar.plan(
            model.model, model.example_inputs, cluster="2x4xV100-SXM2-32GB", mixed_precision="fp16",
            memory_budget="12GB",
        )  # fmt: skip
        assert plan.search is not None
        plans.append(plan.to_bytes())
        counts.append((plan.search["candidates"], plan.search["solve_evaluations"]))
        monkeypatch.setattr(Helper, "asked", asked)
    assert asked_for == {"priced", "staged"}
    assert plans[0] == plans[1]
    assert counts[0] == counts[1]


class Start(Protocol):
    def __call__(self, work: Callable[[Helper], None], several: int = 1) -> Helper:
        """Started, so many of them."""


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch) -> Start:
    def start(work: Callable[[Helper], None], several: int = 1) -> Helper:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(1 + several)))
        made = Helper()
        made.start(partial(work, made), Told(1.0), several)
        return made

    return start


def test_its_answers_are_taken(helped: Start, forked: list[int]) -> None:
    def work(here: Helper) -> None:
        here.asked("bound", lambda: TEN)
        here.asked("impossible", lambda: None)

    made = helped(work)
    made.hear(60.0)
    assert made.asked("bound", never) == (TEN, True)
    assert made.asked("impossible", lambda: None) == (None, False)  # why not is for the search to find
    made.stop()
    assert len(forked) == 1
    assert all_ended(forked)


def test_the_search_waits_for_what_it_has_begun_with(helped: Start) -> None:
    def work(here: Helper) -> None:
        here.asked("bound", lambda: late(0.3))

    made = helped(work)
    assert made.hear(60.0)
    assert made.asked("bound", never) == (TEN, True)
    made.stop()


def test_it_leaves_the_search_what_that_has_begun_with(helped: Start) -> None:
    def work(here: Helper) -> None:
        while not here.best.binds:  # which it is told after what the search begins with
            here.hear(60.0)
        with pytest.raises(BusyError):
            here.asked("bound", never)
        here.asked("left alone", lambda: TEN)
        here.hear(60.0)
        if here.asked("bound", never) == (TEN, True) and here.best == Told(0.5, binds=True):
            here.asked("heard", lambda: TEN)

    def found() -> Answer | None:
        made.tell(Told(0.5, binds=True))
        return TEN if made.hear(60.0) else None

    made = helped(work)
    assert made.asked("bound", found) == (TEN, False)
    while made.hear(60.0):
        pass
    assert made.asked("left alone", never) == (TEN, True)
    assert made.asked("heard", never) == (TEN, True)
    made.stop()


def test_one_that_is_stuck_is_given_up(helped: Start, forked: list[int]) -> None:
    def work(here: Helper) -> None:
        here.asked("bound", lambda: late(600))

    made = helped(work)
    made.stuck_s = 0.1
    made.hear(60.0)
    assert made.asked("bound", lambda: TEN) == (TEN, False)
    assert len(forked) == 1
    assert all_ended(forked)


def test_several_are_told_what_each_begins_with_and_finds(helped: Start, forked: list[int]) -> None:
    def work(here: Helper) -> None:
        if here.number == 0:
            here.asked(("bound", 1), lambda: late(0.5))
        while not here.is_past(("bound",)):
            here.hear(60.0)
        if here.number == 1:
            with pytest.raises(BusyError):
                here.asked(("bound", 1), never)
            while not here.knows(("bound", 1)):
                here.hear(60.0)
            here.asked("heard", lambda: here.asked(("bound", 1), never)[0])

    made = helped(work, 2)
    while not made.knows("heard"):
        assert made.hear(60.0)
    assert made.asked("heard", never) == (TEN, True)
    made.stop()
    assert len(forked) == 2
    assert all_ended(forked)


def test_where_one_of_several_is_stuck_the_others_go_on(helped: Start, forked: list[int]) -> None:
    def work(here: Helper) -> None:
        here.asked(("own", here.number), lambda: late(600 * (here.number == 0)))
        while here.number and here.hear(60.0):
            if here.knows("bound"):
                here.asked("heard", lambda: TEN)

    made = helped(work, 2)
    made.stuck_s = 0.2
    while not (made.is_past(("own", 0)) and made.knows(("own", 1))):
        assert made.hear(60.0)
    assert made.asked(("own", 0), lambda: TEN) == (TEN, False)
    assert all_ended(forked[:1])
    made.asked("bound", lambda: TEN)
    while not made.knows("heard"):
        assert made.hear(60.0)
    made.stop()
    assert len(forked) == 2
    assert all_ended(forked)


def test_more_are_started_later_where_there_are_cores(helped: Start, forked: list[int]) -> None:
    made = helped(idle, 2)
    for wanted, there in ((1, 2), (3, 2)):
        made.start(partial(idle, made), Told(1.0), wanted)
        assert len(forked) == there
    made.stop()
    assert all_ended(forked)


MANY = 200  # of a kilobyte each: more than is taken without waiting


def test_one_that_does_not_listen_holds_nobody_up(helped: Start, forked: list[int]) -> None:
    made = helped(idle)
    made.stuck_s = 0.1
    for _ in range(600):
        assert made.asked("x" * 100_000, lambda: late(0.001)) == (TEN, False)
    assert len(forked) == 1
    assert all_ended(forked)


def test_one_that_is_at_work_hears_later_what_it_was_told(helped: Start) -> None:
    def work(here: Helper) -> None:
        late(0.5)
        while not here.best.binds:
            here.hear(60.0)
        heard = sum(here.knows(("x" * 1000, number)) for number in range(MANY))
        here.asked("heard", lambda: Answer(heard, 1, exact=True))

    made = helped(work)
    for number in range(MANY):
        made.asked(("x" * 1000, number), lambda: TEN)
    made.tell(Told(1.0, binds=True))
    assert any(made.hear(0.1) for _ in range(600))
    assert made.asked("heard", never) == (Answer(MANY, 1, exact=True), True)
    made.stop()


def test_one_that_fails_is_done_without_and_why_is_told(
    helped: Start, forked: list[int], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler(sys.__stderr__)])

    def work(here: Helper) -> None:
        here.asked("bound", lambda: TEN)
        raise MemoryError("no room for a bound")

    made = helped(work)
    made.hear(60.0)
    while not all_ended(forked):
        made.hear(60.0)
    assert made.asked("bound", never) == (TEN, True)
    assert made.asked("another", lambda: TEN) == (TEN, False)
    told = capfd.readouterr().err
    assert "its search goes on alone" in told
    assert "no room for a bound" in told


def test_it_ends_with_the_search(helped: Start, forked: list[int]) -> None:
    made = helped(idle)
    made.stop()
    assert len(forked) == 1
    assert all_ended(forked)


def test_somebody_else_may_have_waited_for_it(helped: Start, forked: list[int]) -> None:
    made = helped(lambda here: None)
    os.waitpid(forked[0], 0)  # as a caller does that waits for all that end
    made.stop()
    assert made.asked("bound", lambda: TEN) == (TEN, False)


def test_there_is_none_where_there_is_no_room_for_one(helped: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    assert helped(idle).asked("bound", lambda: TEN) == (TEN, False)


def test_there_is_none_for_one_core(monkeypatch: pytest.MonkeyPatch, forked: list[int]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    made = Helper()
    made.start(lambda: None, Told(1.0))
    assert forked == []
    assert made.asked("bound", lambda: TEN) == (TEN, False)

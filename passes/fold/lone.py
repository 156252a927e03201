"""A layer that stands by itself ahead of a run: unlike the others, as a dense one ahead of mixtures of experts.

It begins with a value like one that the run begins with, of which it makes that; it reads no other such value, it is
handed no more hidden values (of inputs and parameters) than a call of the run, and nothing of it is used behind it but
what else the run begins with, such as a sum along the layers. As a block of one call its modes are chosen like those of
any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Positions

from autopar.passes.fold.run import Run
from autopar.passes.fold.sequence import Sequence

SMALLEST = 0.5  # of the nodes of the run's own block
FARTHEST = 4  # so many times as many nodes are looked through


def lone_runs(
    seq: Sequence, runs: Positions[Run], parameters: Collection[str], inputs: Collection[str]
) -> list[Run]:
    """Runs of one instance, each directly ahead of one of ``runs``. Parameters and inputs by the names of values."""
    taken = {at for run in runs for instance in run.instances for at in instance}
    users: dict[int, list[int]] = {}
    for at, codes in enumerate(seq.refs):
        for code in codes:
            users.setdefault(code, []).append(at)
    found, hidden = [], _depending(seq, parameters) & _depending(seq, inputs)
    for run in runs:
        one = _ahead_of(seq, run, taken, users)
        if one is not None and _handed(one, hidden) <= _handed(run, hidden):
            found.append(one)
            taken.update(one.instances[0])
    return found


def _ahead_of(seq: Sequence, run: Run, taken: Collection[int], users: Mapping[int, list[int]]) -> Run | None:
    """The largest layer that makes what the run begins with, or one of several values that it begins with."""
    first = {code for code in run.carried.values() if code >= 0 and code not in seq.signature}
    if len(first) < len(run.carried) or any(code // seq.stride in taken for code in first):
        return None
    beside = {code for code in seq.returned if 0 <= code < run.start * seq.stride and code // seq.stride not in taken}
    needed = _needed(seq, {code // seq.stride for code in (*first, *beside)}, taken, FARTHEST * run.length)
    found = (_layer(seq, run, needed, code, first, users) for code in sorted(first))
    return max((one for one in found if one), key=lambda one: one.length, default=None)


def _layer(
    seq: Sequence, run: Run, needed: Positions[int], code: int, first: set[int],
    users: Mapping[int, list[int]],
) -> Run | None:  # fmt: skip
    """The largest layer that makes ``code``, among what is ``needed``."""
    for begin in _alike(seq, needed, code):
        inside = _between(seq, needed, begin)
        if len(inside) < SMALLEST * run.length:
            return None
        if any(seq.nodes[at].target == "call" for at in inside):  # blocks call no blocks
            continue
        inside = _with_own(seq, needed, inside, users)
        made = {one for at in inside for one in _made(seq, at)}
        alone = made.issuperset(read for read in _alike(seq, inside, code) if read != begin)
        beside = sorted((made & (first | seq.returned)) - {code})
        if alone and code in made and _closed(seq, inside, made.difference(first), users):
            return _run(seq, inside, begin, code, beside, users)
    return None


def _depending(seq: Sequence, sources: Collection[str]) -> set[int]:
    """Codes of results that depend on one of these values."""
    found = set[int]()
    for at, codes in enumerate(seq.refs):
        if not found.isdisjoint(codes) or any(name in sources for name in seq.nodes[at].uses()):
            found.update(_made(seq, at))
    return found


def _handed(run: Run, hidden: Collection[int]) -> int:
    """How many such values enter an instance besides what one hands to the next."""
    return sum(code in hidden for code in run.shared)


def _alike(seq: Sequence, positions: Positions[int], code: int) -> list[int]:
    """What nodes read that is like the value of ``code``."""
    read = {read for at in positions for read in seq.refs[at] if read >= 0 and read not in seq.signature}
    return sorted(one for one in read if _type(seq, one) == _type(seq, code))


def _type(seq: Sequence, code: int) -> object:
    return seq.types[seq.nodes[code // seq.stride].results[code % seq.stride // 2].name]


def _needed(seq: Sequence, ends: Collection[int], taken: Collection[int], most: int) -> list[int]:
    """Positions of what nodes depend on, and their own, so many back at most, without those of other runs."""
    end = max(ends)
    found = {at for at in ends if at > end - most}
    waiting = sorted(found)
    while waiting:
        for code in seq.refs[waiting.pop()]:
            at = code // seq.stride
            if code >= 0 and code not in seq.signature and at not in found and at not in taken and at > end - most:
                found.add(at)
                waiting.append(at)
    return sorted(found)


def _between(seq: Sequence, needed: Positions[int], begin: int) -> list[int]:
    """Which of those depend on a value."""
    made, found = {begin}, list[int]()
    for at in needed:
        if not made.isdisjoint(seq.refs[at]):
            found.append(at)
            made.update(_made(seq, at))
    return found


def _with_own(
    seq: Sequence, needed: Positions[int], inside: Positions[int], users: Mapping[int, list[int]]
) -> list[int]:
    """With what is worked out for it of its own parameters alone, such as a weight in another precision."""
    reach = set(inside)
    for at in reversed(needed):
        if all(reach.issuperset(users.get(one, ())) and one not in seq.returned for one in _made(seq, at)):
            reach.add(at)
    found, made = set(inside), set[int]()
    for at in sorted(reach.difference(inside)):
        reads = seq.refs[at]
        if reads and all(each in made or (each in seq.signature and reach.issuperset(users[each])) for each in reads):
            found.add(at)
            made.update(_made(seq, at))
    return sorted(found)


def _made(seq: Sequence, at: int) -> Iterable[int]:
    """Codes of a node's results."""
    return (at * seq.stride + 2 * index for index in range(len(seq.nodes[at].results)))


def _closed(seq: Sequence, inside: Positions[int], made: Collection[int], users: Mapping[int, list[int]]) -> bool:
    """Whether nothing that is made is used elsewhere."""
    own = frozenset(inside)
    return all(own.issuperset(users.get(one, ())) and seq.last_use.get(one, -1) < len(seq.nodes) for one in made)


def _run(
    seq: Sequence, inside: list[int], begin: int, code: int, beside: Positions[int], users: Mapping[int, list[int]]
) -> Run:  # fmt: skip
    offsets = {at: offset for offset, at in enumerate(inside)}
    own, shared = list[tuple[int, int]](), dict[int, None]()
    for at in inside:
        for operand, read in enumerate(seq.refs[at]):
            if read in seq.signature and offsets.keys() >= set(users[read]):
                if read == at * seq.stride + 2 * operand + 1:
                    own.append((offsets[at], operand))
            elif read != begin and (read < 0 or read in seq.signature or read // seq.stride not in offsets):
                shared.setdefault(read)
    made, *others = ((offsets[one // seq.stride], one % seq.stride // 2) for one in (code, *beside))
    return Run(
        start=inside[0], end=inside[-1] + 1, instances=(tuple(inside),), carried={made: begin}, shared=tuple(shared),
        own=tuple(own), collected=tuple(others),
    )  # fmt: skip

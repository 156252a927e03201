"""Which elements of two sequences that differ a little correspond.

Elements that stand once in each are anchors, as in a patience diff; between anchors the longest common
stretches are taken. So long runs of equal layers cost no more than one of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher


def align(theirs: Sequence[Hashable], ours: Sequence[Hashable]) -> dict[int, int]:
    """Index in ``ours`` → index in ``theirs`` of an equal element; both grow together."""
    found: dict[int, int] = {}
    start = (0, 0)
    for anchor in (*_anchors(theirs, ours), (len(theirs), len(ours))):
        matcher = SequenceMatcher(None, theirs[start[0] : anchor[0]], ours[start[1] : anchor[1]], autojunk=False)
        for match in matcher.get_matching_blocks():
            found.update({start[1] + match.b + i: start[0] + match.a + i for i in range(match.size)})
        if anchor[1] < len(ours):
            found[anchor[1]] = anchor[0]
        start = (anchor[0] + 1, anchor[1] + 1)
    return found


def _anchors(theirs: Sequence[Hashable], ours: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """The longest chain of elements that are unique in both and stand in the same order."""
    known, once = Counter(theirs), Counter(ours)
    at = {key: index for index, key in enumerate(theirs) if known[key] == 1}
    pairs = [(at[key], index) for index, key in enumerate(ours) if once[key] == 1 and key in at]
    ends: list[int] = []  # the least last element of a chain of each length
    last: list[int] = []  # its place in ``pairs``
    before: list[int | None] = []
    for place, (their, _) in enumerate(pairs):
        length = bisect_left(ends, their)
        before.append(last[length - 1] if length else None)
        ends[length:] = [their, *ends[length + 1 :]]
        last[length:] = [place, *last[length + 1 :]]
    chain: list[tuple[int, int]] = []
    step = last[-1] if last else None
    while step is not None:
        chain.append(pairs[step])
        step = before[step]
    yield from reversed(chain)

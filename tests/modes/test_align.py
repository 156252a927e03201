"""Pairs of two sequences that differ a little."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from autopar.passes.align import align


def test_what_stands_once_in_each_is_never_taken_for_something_else() -> None:
    """Equal layers around one that was removed are paired with themselves, not with their neighbours."""
    theirs = [f"{op}{layer}" if op == "weight" else op for layer in range(3) for op in ("weight", "drop", "add")]
    ours = [f"{op}{layer}" if op == "weight" else op for layer in range(3) for op in ("weight", "add")]
    assert align(theirs, ours) == {0: 0, 1: 2, 2: 3, 3: 5, 4: 6, 5: 8}


@given(st.lists(st.integers(0, 6), max_size=30), st.lists(st.integers(0, 6), max_size=30))
def test_pairs_are_equal_and_in_order(theirs: list[int], ours: list[int]) -> None:
    found = sorted(align(theirs, ours).items())
    assert all(ours[at] == theirs[their] for at, their in found)
    assert all(a[1] < b[1] for a, b in itertools.pairwise(found))


@given(st.lists(st.integers(0, 6), max_size=30))
def test_a_sequence_is_paired_with_itself(entries: list[int]) -> None:
    assert align(entries, entries) == {at: at for at in range(len(entries))}

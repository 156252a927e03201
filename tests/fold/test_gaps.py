"""What is missing in a chain is put back: the fold of a part, filled, is the fold of the whole."""

from collections.abc import Callable, Iterable

import pytest

from autopar.ir.graph import Graph
from autopar.ir.verify import verify
from autopar.passes.fold import fold
from autopar.passes.fold.gaps import Gap, UnfilledError, fill
from tests.fold.build import MATRIX, Builder, calls

LAYERS, KEPT = 12, (0, 1, 2, 3, 10, 11)
PARTS = ("up", "down")


def names(layer: int) -> tuple[str, ...]:
    return tuple(f"{layer}.{part}" for part in PARTS)


GAP = Gap(before=names(3), missing=tuple(names(layer) for layer in range(4, 10)), after=names(10))


def residual(made: Builder, x: str, up: str, down: str) -> str:
    return made.op("aten.add.Tensor", x, made.linear(made.op("aten.relu.default", made.linear(x, up)), down))


def forked(made: Builder, x: str, up: str, down: str) -> str:
    """The narrowest place is inside: between the products and the next sum two values pass."""
    total = made.op("aten.relu.default", x)
    return made.op("aten.mul.Tensor", made.linear(total, up), made.linear(total, down))


def stack(layer: Callable[..., str], layers: Iterable[int], *, apart: bool = False) -> Graph:
    """``apart``: between any two layers stands an operation of its own."""
    made = Builder()
    x = made.input()
    for number in layers:
        weights = [made.add("param", (), MATRIX, {"fqn": name}) for name in names(number)]
        x = layer(made, x, *weights)
        if apart:
            x = made.op("aten.mul.Tensor", x, other=float(number))
    return made.graph(made.op("aten.sum.default", x))


@pytest.mark.parametrize("layer", [residual, forked])
def test_a_filled_chain_is_the_fold_of_the_whole(layer: Callable[..., str]) -> None:
    whole = stack(layer, range(LAYERS))
    filled, nodes = fill(fold(stack(layer, KEPT)), [GAP])
    verify(filled)
    assert filled == fold(whole)
    assert calls(filled)[0][0] >= LAYERS - 1
    assert nodes == len(whole.nodes) - len(stack(layer, KEPT).nodes)


@pytest.mark.parametrize("again", [names(5), names(1), names(3)])
def test_layers_that_are_called_twice_leave_no_gap(again: tuple[str, ...]) -> None:
    """Once in the gap, and there or somewhere else in the graph once more."""
    missing = (names(4), names(5), again, names(6))
    with pytest.raises(UnfilledError):
        fill(fold(stack(residual, KEPT)), [Gap(before=names(3), missing=missing, after=names(10))])


def test_two_gaps_of_one_call_are_both_filled() -> None:
    kept = (0, 1, 2, 5, 6, 9, 10, 11)
    gaps = [
        Gap(before=names(2), missing=(names(3), names(4)), after=names(5)),
        Gap(before=names(6), missing=(names(7), names(8)), after=names(9)),
    ]
    assert fill(fold(stack(residual, kept)), gaps)[0] == fold(stack(residual, range(LAYERS)))


def test_what_all_instances_share_is_no_part_of_a_gap() -> None:
    gap = Gap(before=("0.up", "tied"), missing=(("1.up", "tied"),), after=("2.up", "tied"))
    assert gap.columns() == {"0.up": (("1.up",), "2.up")}


@pytest.mark.parametrize(
    ("graph", "gap"),
    [
        (fold(stack(residual, KEPT, apart=True)), GAP),  # nothing was folded
        (fold(stack(residual, KEPT)), Gap(before=names(2), missing=(names(5),), after=names(10))),  # no neighbours
        (fold(stack(residual, KEPT)), Gap(before=names(20), missing=(names(21),), after=names(22))),  # not there
    ],
)
def test_a_gap_that_is_in_no_call_is_refused(graph: Graph, gap: Gap) -> None:
    with pytest.raises(UnfilledError):
        fill(graph, [gap])

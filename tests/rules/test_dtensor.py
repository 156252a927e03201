"""The op table against torch's DTensor: what DTensor offers without moving anything, we offer, or say why not."""

from __future__ import annotations

import warnings

import pytest

from autopar.ir.optable import TABLE
from tests.rules.dtensor import Offer, dtensor_offers, fake_mesh, our_offers, text
from tests.rules.example import Example
from tests.rules.examples import EXAMPLES

CORE = (
    "aten.add.Tensor", "aten.mul.Tensor", "aten.gelu.default", "aten.linear.default", "aten.matmul.default",
    "aten.embedding.default", "aten.layer_norm.default", "aten.softmax.int", "aten.sum.dim_IntList",
    "aten.reshape.default", "aten.permute.default", "aten.split_with_sizes.default", "aten.cat.default",
    "aten.index_select.default", "aten.gather.default",
)  # fmt: skip
EXAMPLES_OF_EACH = 3

CONSTANT = "the result does not depend on the operand's values, so no plan needs them summed or split"
EXTREMUM = (
    "the gradient goes to the largest elements of the whole dim, which no device knows; the maximum that no "
    "gradient passes is autopar.row_max, and that is offered"
)
TRUTH = "booleans are no summands: layouts have Partial(sum) and Partial(max) of numbers only"

# What DTensor offers and we do not, and why. "*": everything that it offers for the operation beyond ours.
NOT_OFFERED: dict[str, dict[str, str]] = {
    **{f"aten.{name}_like.default": {"P(sum) -> R": CONSTANT} for name in ("zeros", "ones", "full")},
    **{f"aten.new_{name}.default": {"*": CONSTANT} for name in ("zeros", "ones", "full")},
    **{f"aten.{name}.default": {"S(0) -> P(max)": EXTREMUM, "S(1) -> P(max)": EXTREMUM} for name in ("amax",)},
    **{f"aten.{name}.default": {"S(0) -> P(min)": EXTREMUM, "S(1) -> P(min)": EXTREMUM} for name in ("amin",)},
    **{
        f"aten.{name}": {f"S({i}) -> P(sum)": TRUTH for i in range(3)}
        for name in ("any.dim", "any.default", "any.dims")
    },
    **{f"aten.{name}": {f"S({i}) -> P(product)": TRUTH for i in range(3)} for name in ("all.dim", "all.default")},
    "aten.isin.Tensor_Tensor": {"R,S(0) -> P(sum)": TRUTH},
    **{
        f"aten.{name}": {f"S({i}) -> P(product)": "layouts have no Partial(product)" for i in range(2)}
        for name in ("prod.dim_int", "prod.default")
    },
    "aten.linalg_vector_norm.default": {
        f"S({i}) -> P(sum)": "its Partial is of powers, a root taken later; layouts have sums alone" for i in range(2)
    },
    "aten.logsumexp.default": {"S(1) -> S(0)": "DTensor is wrong: the shards are of dim 1, dim 0 has size 1"},
    **{f"aten.{name}.default": {"*": "DTensor gathers inside the operation"} for name in ("argmax", "argmin")},
    "aten.convolution.default": {
        "*": "DTensor exchanges borders inside the operation and calls results of split or summed weights whole, which "
        "they are not"
    },
    **{
        f"aten.{name}": {"*": "operand and values would have to be summands together; updates are reduced first"}
        for name in ("index_put.default", "index_add.default", "index_copy.default", "index_fill.int_Tensor")
    },
    "aten.to.dtype": {
        "P(sum) -> P(sum)": "a rule knows shapes, no element types, and a narrowing cast of summands loses bits"
    },
    "aten.dropout.default": {"P(sum) -> P(sum)": "summands would each need the mask of the sum"},
    "aten.rms_norm.default": {"R,P(sum) -> P(sum)": "a weight is a parameter, and those are never summands"},
    "aten.gather.default": {
        "S(0),S(0) -> S(0)": "DTensor is wrong where the index has fewer rows than the operand: row i of the index "
        "reads row i, which another device has; where it has all rows we offer it"
    },
    "aten.index_select.default": {
        f"P(sum),S(0) -> S({dim})": "DTensor of torch 2.11 is wrong: what is picked of summands are summands"
        for dim in range(2)
    },
    "aten.binary_cross_entropy.default": {"R,R,P(sum) -> P(sum)": "a weight is given to the loss, and is no summand"},
    "aten.huber_loss.default": {
        "*": "a mean of shards is no summand; canonical losses stand element by element, with a sum after them"
    },
    "aten.index.Tensor": {"*": "one row of several forms, each placed by its own rule where it has one"},
}  # fmt: skip


def some_of_each() -> list[Example]:
    """The first examples of every operation of torch's."""
    found: dict[str, list[Example]] = {}
    for example in EXAMPLES:
        if not example.target.startswith("autopar."):
            found.setdefault(example.target, []).append(example)
    return [example for examples in found.values() for example in examples[:EXAMPLES_OF_EACH]]


def excused(target: str, offer: Offer) -> bool:
    reasons = NOT_OFFERED.get(target, {})
    return "*" in reasons or text(offer) in reasons


def compared(examples: list[Example]) -> tuple[int, list[str]]:
    """How many offers both make, and those that only DTensor makes without an excuse."""
    shared, missing = 0, []
    with fake_mesh() as mesh, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DTensor warns of what it is about to redistribute
        for example in examples:
            ours = our_offers(example)
            for offer in sorted(dtensor_offers(example, mesh)):
                shared += offer in ours
                if offer not in ours and not excused(example.target, offer):
                    missing.append(f"{example}: {text(offer)}")
    return shared, missing


def test_every_placement_of_dtensor_is_offered_for_the_core_operations() -> None:
    shared, missing = compared([e for e in some_of_each() if e.target in CORE])
    assert missing == []
    assert shared > 60


@pytest.mark.slow
def test_every_placement_of_dtensor_is_offered_or_excused() -> None:
    shared, missing = compared(some_of_each())
    assert missing == []
    assert shared > 200


def test_a_placement_that_is_not_offered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that lost row parallelism is told so."""
    from autopar.ir.optable import rule

    monkeypatch.setitem(TABLE, "aten.matmul.default", TABLE["aten.matmul.default"])
    rule("aten.matmul.default", "*b m !k, *b !k n -> *b m n", partial="0|1")
    _, missing = compared([e for e in some_of_each() if e.target == "aten.matmul.default"][:1])
    assert [line.rpartition(": ")[2] for line in missing] == ["S(1),S(0) -> P(sum)"]


def test_excuses_are_of_operations_that_are_there() -> None:
    assert set(NOT_OFFERED) <= set(TABLE)

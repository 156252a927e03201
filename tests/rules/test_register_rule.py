"""``register_rule``: a rule that cannot be right is refused by its text, one that lies by its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from autopar import register_rule
from autopar.errors import RuleError, UsageError
from autopar.ir.optable import TABLE
from autopar.ir.registry import REGISTERED, described
from autopar.ir.rules import Row
from autopar.runtime.rule_check import check_rule
from tests.rules.custom_ops import MIX, PLAIN, SQUASH

SQUASHED = "*b d, d -> *b d"
LINEAR = "aten.linear.default"


@pytest.fixture(autouse=True)
def _unregistered() -> Iterator[None]:
    yield
    REGISTERED.clear()


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("*b d, d", "one '->'"),
        ("*b d, d -> *b d -> d", "one '->'"),
        ("*b (d, d -> *b d", r"'\(d' is no dim"),
        ("*b d-1, d -> *b d", "'d-1' is no dim"),
        ("d *b, d -> d *b", r"'\*b' stands for leading dims"),
        ("d d, d -> d d", "'d' stands twice in one tensor"),
        ("*b d, d -> *b e", "'e' stands in the results alone"),
        ("*b d -> *b d", "has 1 operands, the operation takes 2 tensors"),
        ("*b d, d, d -> *b d", "has 3 operands, the operation takes 2 tensors"),
        ("*b d, d -> *b d, d", "has 2 results, the operation gives 1"),
    ],
)
def test_a_text_that_is_no_rule_of_the_operation_is_refused_and_quoted(spec: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        register_rule(SQUASH, spec)
    assert repr(spec) in str(caught.value)
    assert SQUASH not in REGISTERED


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"partial": "0,1"}, "partial='0,1' is not positions"),
        ({"partial": "0|2"}, "names operand 2, the rule has 2"),
        ({"saves": (0, 5)}, "names operand 5"),
        ({"flops": "2 *b e"}, "'e' is no factor of the rule; its factors are \\*b, d"),
        ({"contiguous": ("e",)}, "'e' is no factor"),
        ({"reduce": "mean"}, "reduce='mean'"),
        ({"backward": -1.0}, "backward=-1.0 is negative"),
        ({"example": (torch.ones(2, 2), torch.ones(2))}, "pass both"),
    ],
)
def test_a_column_that_means_nothing_is_refused(columns: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        register_rule(SQUASH, SQUASHED, **columns)


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("apt_tests.absent.default", "torch has no operation 'apt_tests.absent.default'"),
        ("apt_tests.squash", "names no overload; apt_tests.squash has default"),
        ("linear", "torch has no operation 'linear'"),
        ("autopar.cross_entropy_stats", "torch has no operation"),
    ],
)
def test_an_operation_that_torch_does_not_have_is_refused(target: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        register_rule(target, "*b -> *b", override=True)


def test_a_rule_of_autopars_own_is_replaced_only_on_demand() -> None:
    """And the table itself stays as it is."""
    before = TABLE[LINEAR]
    with pytest.raises(UsageError, match="override=True"):
        register_rule(LINEAR, "*b k, n k -> *b n")
    register_rule(LINEAR, "*b k, n k -> *b n", override=True, check=True)
    assert REGISTERED[LINEAR].spec == "*b k, n k -> *b n"
    assert TABLE[LINEAR] is before


def test_a_later_rule_replaces_the_users_own() -> None:
    register_rule(torch.ops.apt_tests.squash.default, SQUASHED)
    register_rule("apt_tests::squash.default", "*b !d, !d -> *b !d")
    assert [row.spec for row in REGISTERED.values()] == ["*b !d, !d -> *b !d"]


def test_a_checked_rule_is_tried_on_every_factor_in_parts_and_strides() -> None:
    """Without an example, on random operands that fit the text."""
    tried = check_rule(Row(target=SQUASH, spec=SQUASHED, partial="1"), torch.ops.apt_tests.squash.default)
    assert {split.factor for split in tried} == {"*b0", "*b1", "d", ""}
    assert {split.outer for split in tried} > {1, 3}
    register_rule(SQUASH, SQUASHED, partial="1", check=True)
    assert REGISTERED[SQUASH].partial == "1"


@pytest.mark.parametrize(
    ("target", "spec", "columns", "problem"),
    [
        (MIX, "n d -> n d", {}, "factor n split over 2 devices, result 0 differs"),
        ("apt_tests.honest_forward.default", "n d -> n d", {}, "factor n .* the gradient of operand 0 differs"),
        (SQUASH, SQUASHED, {"partial": "0"}, "operands 0 partial on 2 devices, result 0 differs"),
        (LINEAR, "*b !k, n !k, n -> *b n", {"partial": "0", "override": True}, "operands 0 partial .* result 0"),
        (LINEAR, "*b k, n k, n -> *b n", {"override": True}, "factor k split .* result 0 differs"),
        ("aten.sort.default", "*b k -> *b k, *b k", {}, "factor k split .* result 0 differs"),
        (SQUASH, "*b d, d -> *b d", {"reduce": "max"}, ""),
        ("aten.amax.default", "n d -> d", {"example": {"self": torch.randn(4, 6), "dim": [0]}, "override": True},
         "factor n split .* result 0 differs"),
        ("aten.flatten.using_ints", "a b -> (b a)", {"example": (torch.randn(4, 6),)}, "factor [ab] .* differs"),
        ("aten.t.default", "a b -> b a", {}, ""),
    ],
)  # fmt: skip
def test_a_rule_that_lies_is_refused_with_the_factor_and_what_differs(
    target: str, spec: str, columns: dict[str, Any], problem: str
) -> None:
    """The last column is empty where the rule is true."""
    if not problem:
        register_rule(target, spec, check=True, **columns)
        assert target in REGISTERED
        return
    with pytest.raises(RuleError, match=problem) as caught:
        register_rule(target, spec, check=True, **columns)
    assert repr(spec) in str(caught.value)
    assert target not in REGISTERED


def test_an_example_gives_what_random_floats_cannot() -> None:
    """Indices, and arguments that are no tensors, by position or name."""
    table, ids = torch.randn(4, 8), torch.randint(4, (2, 6))
    with pytest.raises(UsageError, match=r"does not run on the operands .*Give example="):
        register_rule("aten.embedding.default", "!v d, *b -> *b d", check=True, override=True)
    register_rule("aten.embedding.default", "!v d, *b -> *b d", check=True, override=True, example=(table, ids))
    with pytest.raises(UsageError, match="needs an argument 'dim'"):
        register_rule("aten.cumsum.default", "*b !k -> *b !k", check=True, override=True)
    called = {"self": torch.randn(4, 8), "dim": -1}
    register_rule("aten.cumsum.default", "*b !k -> *b !k", check=True, override=True, example=called)
    with pytest.raises(RuleError, match="factor k"):
        register_rule("aten.cumsum.default", "*b k -> *b k", check=True, override=True, example=called)
    with pytest.raises(UsageError, match="takes no argument 'axis'"):
        register_rule("aten.cumsum.default", "*b k -> *b k", check=True, override=True, example=called | {"axis": 1})


def test_an_example_that_the_rule_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"does not fit a tensor of shape \[4, 8\]"):
        register_rule(SQUASH, "a b d, d -> a b d", check=True, example=(torch.randn(4, 8), torch.randn(8)))
    with pytest.raises(UsageError, match="d is 1 in the example"):
        register_rule(SQUASH, SQUASHED, check=True, example=(torch.randn(4, 1), torch.randn(1)))


def test_an_operation_without_a_gradient_is_tried_forward_if_none_flows() -> None:
    with pytest.raises(UsageError, match="no gradient that can be tried"):
        register_rule(PLAIN, "*b -> *b", check=True)
    register_rule(PLAIN, "*b -> *b", check=True, backward=0)


def test_the_text_of_a_rule_tells_all_that_differs() -> None:
    row = Row(target="x.y.z", spec="*b k -> *b", flops="2 *b k", contiguous=("k",))
    assert described(row) == "*b k -> *b, flops='2 *b k', contiguous=('k',)"

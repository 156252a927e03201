"""Options of more than one word."""

from __future__ import annotations

import pytest

from autopar.cli.parse import parse_constraints, parse_mesh, parse_time_limit_s
from autopar.ir.constraints import Constraint
from autopar.ir.errors import UsageError


def test_a_mesh_keeps_the_order_of_its_axes():
    assert list(parse_mesh("pp=2, dp=4,tp=8").items()) == [("pp", 2), ("dp", 4), ("tp", 8)]


def test_minus_one_leaves_an_axis_free():
    assert parse_mesh("dp=-1,tp=8") == {"dp": -1, "tp": 8}


@pytest.mark.parametrize("text", ["", "dp", "dp=", "dp=0", "dp=-2", "dp=2,", "dp=1.5", "DP=2", "=2", "dp:2"])
def test_what_is_not_a_mesh_is_named(text):
    with pytest.raises(UsageError, match="is not AXIS=SIZE"):
        parse_mesh(text)


def test_an_axis_given_twice_is_refused():
    with pytest.raises(UsageError, match="axis dp is given twice"):
        parse_mesh("dp=2,dp=4")


def test_constraints_are_read_in_order():
    assert parse_constraints(["replicate:*.norm", "split:h.*.w:dim=-1,axis=tp", "split:w:axis=dp,dim=0"]) == (
        Constraint("*.norm"),
        Constraint("h.*.w", dim=-1, axis="tp"),
        Constraint("w", dim=0, axis="dp"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "replicate",
        "replicate:",
        "stage:w:0",
        "split:w",
        "split::dim=0,axis=tp",
        "split:w:dim=0",
        "split:w:dim=x,axis=tp",
        "split:w:dim=0,axis=",
        "split:w:dim=0,axis=tp,dim=1",
        "split:w:dim=0,axis=tp,more=1",
    ],
)
def test_what_is_not_a_constraint_is_answered_with_the_forms(text):
    with pytest.raises(UsageError, match="split:PATTERN:dim=0,axis=tp or stage:PATTERN:index=1"):
        parse_constraints([text])


@pytest.mark.parametrize(("text", "seconds"), [("60", 60.0), ("1.5s", 1.5), ("2min", 120.0)])
def test_a_time_limit_may_have_a_unit(text, seconds):
    assert parse_time_limit_s(text) == seconds


@pytest.mark.parametrize("text", ["0", "-1", "soon", "0ms"])
def test_a_time_limit_is_more_than_zero(text):
    with pytest.raises(UsageError):
        parse_time_limit_s(text)

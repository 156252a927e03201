"""Every rule of the op table at random shapes, meshes and element types against the unsharded operation."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from autopar.ir.errors import VerificationError
from autopar.ir.mesh import Mesh
from autopar.ir.optable import TABLE, rule
from tests.rules.examples import EXAMPLES, NOT_RUN
from tests.rules.lies import LIES
from tests.rules.oracle import Case, case_of, check
from tests.rules.scaling import FIXED, Call, calls, scales, whole_rule

SCALED = tuple(dict.fromkeys(e.target for e in EXAMPLES if scales(e)))
CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def holds(call: Call, strategies: int, seed: int) -> None:
    """Raise where a strategy gives something else than the whole operation. Calls that torch refuses pass."""
    case = whole(call)
    assume(case is not None)
    assert case is not None
    found = list(case.strategies())
    random.Random(seed).shuffle(found)
    for chosen in found[:strategies]:
        try:
            check(case, chosen)
        except Exception as error:
            error.add_note(f"{call} with {chosen.text(case.mesh)}")
            raise


def whole(call: Call) -> Case | None:
    """The operation on one device, or None where torch has none for these sizes and element type."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            case = case_of(call.example, call.mesh, call.dtype)
    except (RuntimeError, IndexError, ValueError, UserWarning):
        return None
    tensors = [*case.forward, *case.gradients.values()]
    good = all(bool(x.isfinite().all()) for x in tensors if x.is_floating_point())
    return case if good and all(x.numel() for x in tensors) else None


@pytest.mark.parametrize("target", SCALED)
def test_every_rule_holds_at_random_sizes(target: str) -> None:
    """A few draws of each operation, three strategies each."""

    @settings(settings.default, max_examples=5, suppress_health_check=CHECKS, database=None)
    @given(call=calls(target), seed=st.integers(0, 999))
    def run(call: Call, seed: int) -> None:
        holds(call, 3, seed)

    run()


@pytest.mark.slow
@pytest.mark.parametrize("target", SCALED)
def test_every_rule_holds_at_many_random_sizes(target: str) -> None:
    """Many draws, a dozen strategies each."""

    @settings(settings.default, max_examples=60, suppress_health_check=CHECKS, database=None)
    @given(call=calls(target), seed=st.integers(0, 999))
    def run(call: Call, seed: int) -> None:
        holds(call, 12, seed)

    run()


def test_every_row_is_drawn_or_says_why_not() -> None:
    """Rows that are not here hold nothing that could be split, or cannot be run at all."""
    missing = [t for t in TABLE if t not in (*SCALED, *NOT_RUN) and t not in FIXED and TABLE[t].spec not in FIXED]
    assert not [e for e in EXAMPLES if e.target in missing and e.operands]


@pytest.mark.slow
@pytest.mark.parametrize("target", SCALED)
def test_draws_really_run(target: str) -> None:
    """Of the first draws at least one runs and has a strategy that splits something, if any example has."""
    split: list[Call] = []

    @settings(max_examples=25, derandomize=True, suppress_health_check=CHECKS, database=None, deadline=None)
    @given(call=calls(target))
    def run(call: Call) -> None:
        if split:
            return
        case = whole(call)
        if case is not None and any(any(c.factor for c in s.choices) for s in case.strategies()):
            split.append(call)

    run()
    rules = [whole_rule(e) for e in EXAMPLES if e.target == target]
    assert split or not any(rule.choosable for rule in rules)


@pytest.mark.parametrize(
    ("target", "spec", "columns"),
    [
        *LIES,
        ("autopar.soft_cross_entropy_rows", "*b v, *b v, v -> *b", {}),
    ],
)
def test_a_lying_rule_is_caught_at_random_sizes(
    monkeypatch: pytest.MonkeyPatch, target: str, spec: str, columns: dict[str, str]
) -> None:
    """The checker is no weaker than its fixed examples."""
    monkeypatch.setitem(TABLE, target, TABLE[target])
    rule(target, spec, **columns)

    @settings(max_examples=40, derandomize=True, suppress_health_check=CHECKS, database=None, deadline=None,
              report_multiple_bugs=False, phases=[Phase.generate])  # fmt: skip
    @given(call=calls(target), seed=st.integers(0, 999))
    def run(call: Call, seed: int) -> None:
        holds(call, 6, seed)

    with pytest.raises((AssertionError, VerificationError, RuntimeError, IndexError)):
        run()


def test_low_precision_values_add_up_exactly() -> None:
    """So that only the operation rounds: parts in bf16 sum to the operand in any order."""
    example = next(e for e in EXAMPLES if e.target == "aten.add.Tensor")
    case = case_of(example, Mesh((("x", 2), ("y", 2))), torch.bfloat16)
    for name, parts in case.tensors.items():
        if name.endswith("_parts"):
            assert torch.equal(parts.double().sum((0, 1)), parts.flip(0, 1).sum((0, 1)).double())

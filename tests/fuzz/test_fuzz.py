"""Random models under random plans compute what plain torch computes."""

from __future__ import annotations

import pytest

from autopar.ir.errors import VerificationError
from autopar.ir.optable import TABLE, rule
from tests.fuzz.budget import tried
from tests.fuzz.fuzz import run_case

FIXED = range(36)


@pytest.mark.parametrize(("mixture", "seeds"), [(False, FIXED[:24]), (True, FIXED[:10])])
def test_random_plans_of_random_models_are_right(mixture: bool, seeds: range) -> None:
    """Always the same cases. Few are refused, and those because they want microbatches that couple samples."""
    outcomes = [run_case(seed, mixture=mixture) for seed in seeds]
    refused = [outcome for outcome in outcomes if outcome.refused]
    assert all("microbatches" in outcome.refused for outcome in refused), refused
    assert len(refused) < len(outcomes) / 3


@pytest.mark.parametrize(
    ("target", "spec", "partial"),
    [("aten.layer_norm.default", "*b d, d, d -> *b d", ""), ("aten.linear.default", "*b k, n k -> *b n", "0+1")],
)
def test_a_lying_rule_is_found(monkeypatch: pytest.MonkeyPatch, target: str, spec: str, partial: str) -> None:
    """Within the fixed cases: they reach placements that are wrong if a rule is."""
    monkeypatch.setitem(TABLE, target, TABLE[target])
    rule(target, spec, partial=partial)
    assert any(_wrong(seed) for seed in FIXED)


def _wrong(seed: int) -> bool:
    try:
        run_case(seed)
    except (VerificationError, AssertionError, RuntimeError):
        return True
    return False


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_random_models_until_the_time_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    """Each from its own seed, which a failure names; every other a mixture."""
    right, refused = tried(lambda seed: bool(run_case(seed, mixture=bool(seed % 2)).refused), 10, capsys)
    assert right > refused


def test_a_gradient_that_is_noise_on_one_device_too_is_not_held_against_a_plan() -> None:
    """Saturated attention: its gradient is 0 but for rounding, of which a loss of 10^8 leaves much."""
    outcome = run_case(186202767)
    assert not outcome.refused

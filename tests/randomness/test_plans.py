"""Every plan draws what one device draws: loss and gradients of models with dropout do not depend on it."""

from __future__ import annotations

import pytest
import torch

from autopar.ir.errors import VerificationError
from autopar.runtime import ops, random_words
from autopar.runtime import simulate as simulator
from autopar.runtime.parity import compare
from autopar.runtime.simulate import Simulated
from tests.randomness.dropped import SEED, STEP, Case, alone, batch, built, program, run

QUICK = [
    Case(model="gpt2", mesh="dp=2"),
    Case(model="gpt2", mesh="tp=2"),
    Case(model="gpt2", mesh="dp=2,tp=2", microbatches=2, zero=3, recompute="full"),
    Case(model="gpt2", mesh="cp=2", microbatches=2),
    Case(model="bert", mesh="dp=2,tp=2"),
    Case(model="llama", mesh="dp=2,tp=2"),
    Case(model="gpt2", mesh="dp=2,tp=2", recompute="full", shared=False),
    Case(model="t5", mesh="dp=2", recompute="full"),
    Case(model="weighted", mesh="dp=2", microbatches=2),
]
SLOW = [
    Case(model="gpt2", mesh="dp=2,cp=2", microbatches=4, zero=0),
    Case(model="gpt2", mesh="dp=2,tp=2", recompute="none"),
    Case(model="gpt2", mesh="dp=4", microbatches=2, zero=0),
    Case(model="bert", mesh="dp=2", microbatches=2, zero=0),
    Case(model="bert", mesh="cp=2"),
    Case(model="bert", mesh="tp=2", recompute="full"),
    Case(model="llama", mesh="tp=2", recompute="full"),
    Case(model="llama", mesh="dp=2", microbatches=2, zero=3),
    Case(model="llama", mesh="cp=2"),
    Case(model="t5", mesh="tp=2"),
    Case(model="switch", mesh="ep=2"),
    Case(model="switch", mesh="ep=2,tp=2"),
    Case(model="switch", mesh="dp=2,ep=2"),
    Case(model="switch", mesh="tp=2", recompute="full"),
    Case(model="t5", mesh="dp=2,tp=2", microbatches=2),
]


def difference(found: Simulated, case: Case) -> float:
    """Largest error of loss and gradients beside one device's; VerificationError above the case's tolerance."""
    expected = alone(case.model)
    assert found.loss is not None and expected.loss is not None
    loss, one = {"loss": found.loss.double()}, {"loss": expected.loss.double()}
    return max(
        compare(loss, one, tol=case.tolerance, what="loss"),
        compare(found.gradients, expected.gradients, tol=case.tolerance, what="gradients"),
    )


@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(c, marks=pytest.mark.slow) for c in SLOW)], ids=str)
def test_a_model_with_dropout_is_the_same_on_every_mesh(case: Case) -> None:
    assert difference(run(case), case) <= case.tolerance


@pytest.mark.parametrize("mesh", ["dp=2", "tp=2", "dp=2,tp=2", "cp=2", "dp=2,cp=2"])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_every_mask_is_the_same_to_the_last_element(mesh: str, microbatches: int) -> None:
    """Masks of dropout, of whole channels, noise, numbers that the batch shares, coin tosses."""
    case = Case(model="masks", mesh=mesh, microbatches=microbatches)
    found, expected = run(case), alone("masks")
    assert difference(found, case) <= case.tolerance
    for got, wanted in zip(found.outputs[2:], expected.outputs[2:], strict=True):
        assert wanted.unique().numel() > 1
        assert torch.equal(got, wanted)


def test_one_device_computes_the_model_with_these_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unmodified model, its dropouts replaced in the order of their calls by draws 0, 1, 2, …"""
    found, model = alone("gpt2 eager"), built("gpt2 eager")
    state, calls = random_words.rng_state(SEED, STEP), iter(range(100))

    def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        index = random_words.whole(x.shape)
        kept = random_words.below(state, next(calls), index, x.device, 1 - p)
        return x * kept / (1 - p)

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    model.zero_grad()
    loss = model(**batch("gpt2")).loss
    loss.backward()
    assert found.loss is not None and next(calls) == 7
    compare({"loss": found.loss}, {"loss": loss.detach()}, tol=1e-10, what="loss")
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    compare(found.gradients, expected, tol=1e-10, what="gradients")


def test_another_step_and_another_seed_draw_other_masks() -> None:
    losses = [run(Case(model="gpt2"), seed=seed, step=step).loss for seed, step in ((3, 5), (3, 6), (4, 5))]
    assert len({float(loss) for loss in losses if loss is not None}) == 3
    again = run(Case(model="gpt2"), seed=3, step=5).loss
    assert again is not None and losses[0] is not None and torch.equal(again, losses[0])


@pytest.mark.parametrize(
    "case", [Case(model="gpt2", mesh="dp=2"), Case(model="gpt2", mesh="tp=2"), Case(model="gpt2", mesh="cp=2")], ids=str
)
def test_an_index_within_the_shard_would_be_noticed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: every device takes its part for the first one."""
    expected = alone("gpt2")
    place = ops._place
    monkeypatch.setattr(ops, "_place", lambda axis, at: 0 if place(axis, at) is not None else None)
    assert expected.loss is not None
    with pytest.raises(VerificationError):
        difference(run(case), case)


def test_a_microbatch_that_draws_like_the_first_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(model="gpt2", mesh="dp=2", microbatches=2)
    alone("gpt2")
    monkeypatch.setattr(simulator, "at_microbatch", lambda rng, microbatch: rng)
    with pytest.raises(VerificationError):
        difference(run(case), case)


def test_layers_that_draw_alike_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    alone("gpt2")
    monkeypatch.setitem(ops.FUNCTIONS, "advance", lambda rng, by: rng)
    case = Case(model="gpt2", mesh="dp=2")
    with pytest.raises(VerificationError):
        difference(run(case), case)


def test_what_is_drawn_ahead_of_the_microbatches_is_drawn_once() -> None:
    made, _ = program(Case(model="weighted", mesh="dp=2", microbatches=2))
    assert made.prologue is not None
    assert [node.target for node in made.prologue.nodes if node.target == "autopar.uniform"]

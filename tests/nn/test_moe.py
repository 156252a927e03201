"""The layer against its definition, written as loops: outputs, losses, drops and every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from autopar.errors import UsageError
from autopar.nn import MoE
from autopar.runtime.initialise import tensors_of
from tests.nn import reference

WIDTH, INNER, EXPERTS = 6, 5, 8
ROUTERS: dict[str, dict[str, Any]] = {
    "top-1": {"top_k": 1},
    "top-2": {"top_k": 2, "normalize": True},
    "all of them": {"top_k": 8},
    "2 top-1": {"top_k": 1, "prototypes": 2},
    "2 top-2, scaled": {"top_k": 2, "prototypes": 2, "normalize": True},
    "sigmoid": {"top_k": 2, "gate": "sigmoid", "normalize": True},
    "4 sigmoid": {"top_k": 1, "prototypes": 4, "gate": "sigmoid"},
}


def layer(**changed: Any) -> MoE:
    torch.manual_seed(0)
    given = {"z_loss": 0.1, "balance_loss": 0.3, **changed}
    moe = MoE(WIDTH, INNER, EXPERTS, dtype=torch.float64, **given)
    with torch.no_grad():
        moe.router.weight.mul_(4)  # gates far apart: experts are full or empty
    return moe


def tokens(batch: int = 2, length: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, WIDTH, generator=generator, dtype=torch.float64).requires_grad_()


def gradients(moe: MoE, x: Tensor, loss: Tensor) -> dict[str, Tensor]:
    """Of every parameter and of the input."""
    named = {**dict(moe.named_parameters()), "x": x}
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def objective(hidden: Tensor, loss: Tensor) -> Tensor:
    """Any number that depends on all of the output and on the auxiliary losses."""
    weights = torch.arange(1.0, hidden.numel() + 1, dtype=hidden.dtype).reshape(hidden.shape).cos()
    return (hidden * weights).sum() + loss


def check(moe: MoE, x: Tensor, noise: Tensor | None = None) -> list[int]:
    """Compare the layer with the loops; the drops of each sequence."""
    torch.manual_seed(2)
    hidden, loss, dropped = moe(x)
    wanted, wanted_loss, wanted_dropped = reference.run(moe, x, noise)
    torch.testing.assert_close(hidden, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loss, wanted_loss, rtol=1e-12, atol=1e-12)
    assert dropped.tolist() == wanted_dropped
    found, expected = (gradients(moe, x, objective(h, l)) for h, l in ((hidden, loss), (wanted, wanted_loss)))
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-11, atol=1e-11, msg=name)
    return wanted_dropped


@pytest.mark.parametrize("capacity", [None, 1.0, 0.4])
@pytest.mark.parametrize("router", ROUTERS)
def test_a_layer_is_what_its_loops_are(router, capacity):
    """Forward, losses, drops, and the gradient of every parameter and of the input."""
    dropped = check(layer(**ROUTERS[router], capacity_factor=capacity), tokens())
    assert (sum(dropped) > 0) == (capacity == 0.4 or (capacity == 1.0 and router != "all of them"))


@pytest.mark.parametrize("activation", ["silu-glu", "relu", "gelu", "gelu-glu"])
def test_every_activation_has_its_gradient(activation):
    check(layer(activation=activation), tokens(2, 4))


def test_in_training_the_router_alone_sees_noise():
    """Experts get the tokens as they are; in evaluation there is no noise."""
    moe, x = layer(jitter=0.3), tokens()
    torch.manual_seed(2)
    noise = torch.rand_like(x)
    check(moe, x, noise)
    with torch.no_grad():
        assert not torch.equal(moe(x).hidden, moe.eval()(x).hidden)
    check(moe, x)


def test_one_choice_of_one_prototype_is_switch():
    """Each token gets p · expert(token) of its likeliest expert, until that has ceil(factor · length / experts)."""
    moe, x = layer(top_k=1, capacity_factor=1.25, activation="relu", z_loss=0.0), tokens(2, 9)
    hidden, loss, dropped = moe(x)
    probabilities = torch.softmax(x @ moe.router.weight.T, dim=-1)
    p, best = probabilities.max(-1)
    aux, lost = torch.zeros(()).double(), [0, 0]
    for sample in range(2):
        for e in range(EXPERTS):
            wants = (best[sample] == e).nonzero().flatten().tolist()
            for place, at in enumerate(wants):
                out = moe.down[e] @ torch.relu(moe.up[e] @ x[sample, at])
                given = torch.zeros_like(out) if place >= 2 else p[sample, at] * out
                torch.testing.assert_close(hidden[sample, at], given)
            lost[sample] += max(0, len(wants) - 2)
            aux = aux + 0.3 * EXPERTS * len(wants) / 9 * probabilities[sample, :, e].mean() / 2
    torch.testing.assert_close(loss, aux)
    assert dropped.tolist() == lost and sum(lost) > 0


def test_all_tokens_may_want_one_expert():
    """It takes its capacity and no more, in order of position; the others are empty, and their gradients are 0."""
    moe = layer(top_k=1, capacity_factor=1.0)
    x = tokens(2, 8).detach().abs().requires_grad_()
    with torch.no_grad():
        moe.router.weight.fill_(-1.0)[2].fill_(1.0)
    assert check(moe, x) == [7, 7]
    hidden, loss, _ = moe(x)
    assert not hidden[:, 1:].any() and hidden[:, :1].all()
    found = gradients(moe, x, objective(hidden, loss))
    for e in (0, 1, 3, 4, 5, 6, 7):
        assert not found["up"][e].any() and not found["down"][e].any()
    assert found["up"][2].any() and found["router.weight"][0].any()


def test_first_choices_are_taken_before_second_ones():
    """The second choice of an early token yields to the first choice of a late one."""
    moe = layer(top_k=2, capacity_factor=1.0)  # one choice an expert of two tokens
    x = torch.zeros(1, 2, WIDTH, dtype=torch.float64)
    x[0, 0, 0], x[0, 1, 1] = 1.0, 1.0
    with torch.no_grad():
        moe.router.weight.zero_()
        moe.router.weight[:, 0] = torch.tensor([4.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
        moe.router.weight[:, 1] = torch.tensor([0.0, 4.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    hidden, _, dropped = moe(x)
    p = torch.softmax(moe.router.weight[:, :2].T, dim=-1)
    assert dropped.tolist() == [1]
    torch.testing.assert_close(hidden[0, 0], p[0, 0] * reference.expert(moe, 0, x[0, 0]))
    second = p[1, 1] * reference.expert(moe, 1, x[0, 1]) + p[1, 2] * reference.expert(moe, 2, x[0, 1])
    torch.testing.assert_close(hidden[0, 1], second)


@pytest.mark.parametrize("router", ROUTERS)
def test_a_batch_is_its_sequences_one_by_one(router):
    """Outputs and drops to the last bit of their rows, the loss the mean: no sequence knows of another."""
    moe, x = layer(**ROUTERS[router], capacity_factor=0.6), tokens(4, 8).detach()
    whole = moe(x)
    alone = [moe(x[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(whole.hidden, torch.cat([each.hidden for each in alone]), rtol=1e-13, atol=1e-13)
    assert whole.dropped.tolist() == [int(each.dropped) for each in alone]
    torch.testing.assert_close(whole.loss, sum(each.loss for each in alone) / 4)


def test_microbatches_add_up_to_the_step():
    """Gradients of the mean loss over two microbatches are those of the whole batch."""
    moe, x = layer(capacity_factor=0.7), tokens(4, 8)
    wanted = gradients(moe, x, objective(*moe(x)[:2]))
    hidden, loss = zip(*(moe(part)[:2] for part in x.chunk(2)), strict=True)
    found = gradients(moe, x, objective(torch.cat(hidden), sum(loss) / 2))
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-11, atol=1e-12)


def test_even_routing_has_a_balance_loss_of_one():
    """Whatever the number of choices and prototypes."""
    for router in ({"top_k": 8}, {"top_k": 4, "prototypes": 2}, {"top_k": 1, "prototypes": 8}):
        moe = layer(**router, balance_loss=1.0, z_loss=0.0)
        with torch.no_grad():
            moe.router.weight.zero_()
        assert moe(tokens()).loss.item() == pytest.approx(1.0)


def test_without_auxiliary_losses_the_loss_is_zero():
    assert float(layer(balance_loss=0.0, z_loss=0.0)(tokens()).loss) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_router_computes_in_float32_at_least(dtype):
    """The output has the type of the input, the losses do not lose digits with it."""
    moe = MoE(WIDTH, INNER, EXPERTS, dtype=dtype)
    x = tokens().to(dtype)
    hidden, loss, _ = moe(x)
    assert (hidden.dtype, loss.dtype, moe.router(x).gates.dtype) == (dtype, torch.float32, torch.float32)


@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalize", [False, True])
def test_choices_are_the_same_whether_or_not_anybody_asks_for_the_gates(gate, normalize):
    """They are left out only where the choices follow from the logits."""
    router = layer(gate=gate, normalize=normalize).router
    asked, alone = router(tokens()), router(tokens(), with_gates=False)
    assert torch.equal(asked.chosen, alone.chosen) and torch.equal(asked.weight, alone.weight)
    assert asked.gates is not None
    assert (alone.gates is None) == (normalize and gate == "softmax")


def test_a_layer_on_meta_is_filled_by_its_own_initialiser():
    """The router and the experts, each within the bounds of an nn.Linear of its size."""
    filled = tensors_of(MoE(WIDTH, INNER, EXPERTS, device="meta"))
    for name, inputs in (("up", WIDTH), ("down", INNER), ("router.weight", WIDTH)):
        assert 0.5 * inputs**-0.5 < float(filled(name).abs().max()) <= inputs**-0.5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"top_k": 9}, "top_k is 9, but a prototype has 8 experts"),
        ({"top_k": 5, "prototypes": 2}, "top_k is 5, but a prototype has 4 experts"),
        ({"prototypes": 3}, "8 experts make no 3 equal prototypes"),
        ({"top_k": 1, "normalize": True}, "the router learns nothing"),
        ({"gate": "tanh"}, "gate is 'tanh'; it is one of softmax, sigmoid"),
        ({"activation": "sine"}, "activation 'sine' is no gate of experts"),
        ({"jitter": 1.0}, "jitter is 1.0"),
        ({"capacity_factor": 0.0}, "capacity_factor is 0.0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changed, message):
    with pytest.raises(UsageError, match=message):
        layer(**changed)


def test_an_input_without_sequences_is_refused():
    with pytest.raises(UsageError, match=r"the input is \[6, 6\]; it must be \[batch, length, 6\]"):
        layer()(tokens()[0])

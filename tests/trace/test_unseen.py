"""What a trace does not see and what would change numbers is refused by name; what only looks like it is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar.errors import UnsupportedError
from autopar.passes.trace import trace
from tests.harness import refusal, run_processes

INPUTS = {"x": torch.zeros(8, 8)}


class Net(nn.Module):
    def __init__(self, middle: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.middle = middle or torch.tanh

    def forward(self, x: Tensor) -> Any:
        return self.last(self.middle(self.first(x) * 2)).pow(2).mean()


def clamped(h: Tensor) -> Tensor:
    with torch.no_grad():
        h.clamp_(-1, 1)
    return h


def set_in_part(h: Tensor) -> Tensor:
    with torch.no_grad():
        h[:, 0] = 0
    return h


def through_detach(h: Tensor) -> Tensor:
    h.detach()[:, 1].mul_(2)
    return h


def made_inside(h: Tensor) -> Tensor:
    with torch.no_grad():
        scale = h * 2
        scale.clamp_(0, 1)
        with torch.no_grad():
            scale[:, 0] = 1
    return h * scale


def filled(h: Tensor) -> Tensor:
    made = torch.zeros_like(h)
    made.copy_(h)
    made[:, 1:].mul_(2)
    return made


def hooked(h: Tensor) -> Tensor:
    h.register_hook(lambda gradient: -gradient)
    return h


def seeded(h: Tensor) -> Tensor:
    torch.manual_seed(1)
    return h + torch.randn(16)


@pytest.mark.parametrize(("middle", "why"), [
    (clamped, "clamp_.* writes to a tensor that has a gradient"),
    (set_in_part, "writes to a tensor that has a gradient"),
    (through_detach, "mul_.* writes to a tensor that has a gradient"),
    (Tensor.detach_, r"x = x.detach\(\) for x.detach_"),
    (hooked, "register_hook"),
    (seeded, "manual_seed"),
])  # fmt: skip
def test_what_autograd_would_do_otherwise_is_refused(middle: Callable[[Tensor], Tensor], why: str) -> None:
    kept = vars(Tensor)["register_hook"], torch.manual_seed
    with pytest.raises(UnsupportedError, match=why):
        trace(Net(middle), INPUTS)
    assert (vars(Tensor)["register_hook"], torch.manual_seed) == kept


@pytest.mark.parametrize("middle", [made_inside, filled])
def test_writes_to_what_has_no_gradient_outside_are_read(middle: Callable[[Tensor], Tensor]) -> None:
    assert trace(Net(middle), INPUTS).loss_output == 0


def test_hooks_on_gradients_are_refused() -> None:
    model = Net()
    model.first.weight.register_hook(lambda gradient: gradient * 0)
    with pytest.raises(UnsupportedError, match=r"parameter first\.weight has a hook on its gradient"):
        autopar.plan(model, INPUTS, cluster="1x1xA100-SXM-80GB")
    model = Net()
    model.last.bias.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(UnsupportedError, match=r"parameter last\.bias has a hook"):
        autopar.plan(model, INPUTS, cluster="1x1xA100-SXM-80GB")
    model = Net()
    model.last.register_full_backward_hook(lambda *_: None)
    with pytest.raises(UnsupportedError, match="last has a backward hook"):
        autopar.plan(model, INPUTS, cluster="1x1xA100-SXM-80GB")


def test_what_is_trained_is_a_parameter() -> None:
    scale, own = nn.Parameter(torch.ones(())), Net()
    for loss_fn in (lambda output, target: output * scale, Weighted(trained=True)):
        with pytest.raises(UnsupportedError, match="is trained, but it is no parameter of the model"):
            trace(Net(), {**INPUTS, "target": torch.zeros(8)}, loss_fn=loss_fn)
    trace(own, {**INPUTS, "target": torch.zeros(8)}, loss_fn=lambda output, target: output + own.last.bias.sum())
    own.middle = Scaled()
    with pytest.raises(UnsupportedError, match=r"the tensor middle\.by is trained"):
        trace(own, INPUTS)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = torch.ones(16, requires_grad=True)

    def forward(self, h: Tensor) -> Tensor:
        return h * self.by


class Weighted(nn.Module):
    """A loss function that is a module, with a tensor of its own."""

    def __init__(self, *, trained: bool = False) -> None:
        super().__init__()
        self.register_buffer("weight", torch.arange(1.0, 5.0))
        if trained:
            self.by = nn.Parameter(torch.ones(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target, weight=self.weight)  # type: ignore[arg-type]


@dataclasses.dataclass
class Output:
    loss: Tensor
    hidden: Tensor


class Returning(Net):
    def forward(self, x: Tensor) -> Output:
        return Output(loss=super().forward(x), hidden=x)


def test_an_object_that_hides_its_tensors_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"returns a Output.* torch.export.register_dataclass\(Output\)"):
        trace(Returning(), INPUTS)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.last = nn.Embedding(16, 8, sparse=True), nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.table(tokens).mean(1))  # type: ignore[no-any-return]


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "tokens": torch.randint(16, (8, 4), generator=generator),
        "target": torch.randint(4, (8,), generator=generator),
    }


def run(mesh: dict[str, int]) -> dict[str, Any]:
    made = autopar.parallelize(Classifier().double(), batch(), mesh=mesh, loss_fn=Weighted().double())
    part = made.shard_inputs(batch())
    loss = made.train_step(**part)
    gradients = {name: each.grad.full_tensor() for name, each in made.named_parameters()}  # type: ignore[union-attr]
    next(made.parameters()).register_hook(lambda gradient: gradient)
    again = autopar.parallelize(Classifier().double(), batch(), mesh=mesh, loss_fn=Weighted().double())
    next(again.parameters()).register_hook(lambda gradient: gradient)
    return {"loss": loss, "gradients": gradients, "hooked": refusal(again.train_step, **part)}


def test_a_loss_function_with_tensors_and_sparse_gradients_give_the_numbers_of_one_device() -> None:
    single, given = Classifier().double(), batch()
    wanted = Weighted().double()(single(given["tokens"]), given["target"])
    wanted.backward()
    for mesh in ({"dp": 2}, {"tp": 2}):
        for found in run_processes(2, run, mesh):
            torch.testing.assert_close(found["loss"], wanted.detach(), rtol=1e-12, atol=0)
            for name, parameter in single.named_parameters():
                exact = parameter.grad.to_dense()  # type: ignore[union-attr]
                torch.testing.assert_close(found["gradients"][name], exact, rtol=1e-10, atol=1e-14)
            assert "has a hook on its gradient" in found["hooked"]

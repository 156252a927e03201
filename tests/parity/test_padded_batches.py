"""A batch of 5 rows, padded to the planned 8: loss and every gradient are those of one device on the 5 rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import autopar
from autopar import errors
from autopar.passes.padding import padding_of
from autopar.runtime.inputs import inputs_of
from autopar.runtime.padding import padded
from autopar.runtime.parity import compare
from autopar.runtime.simulate import simulate
from tests.harness import run_processes
from tests.models import BATCH, BUILDERS, LAYERS, TOLERANCES, inputs
from tests.parity.planned import NETWORKS, Case, built, planned, tensors

ROWS = 5
FAIR = str(NETWORKS / "fair.toml")


def short(name: str, rows: int = ROWS) -> dict[str, Tensor]:
    """The last rows of the batch."""
    return {key: tensor[-rows:] for key, tensor in inputs(name).items()}


def seeded() -> nn.Module:
    """The same in every process."""
    torch.manual_seed(0)
    return BUILDERS["gpt2"](LAYERS)


def single(model: nn.Module, name: str, rows: int = ROWS) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    loss = model(**short(name, rows)).loss
    loss.backward()
    return loss.detach(), {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}


def is_same(
    model: nn.Module, name: str, loss: Tensor | None, gradients: dict[str, Tensor], rows: int = ROWS
) -> None:
    assert loss is not None
    expected_loss, expected = single(model, name, rows)
    compare({"loss": loss.double()}, {"loss": expected_loss.double()}, tol=TOLERANCES[name], what="loss")
    compare(gradients, expected, tol=TOLERANCES[name], what="gradients")


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize(
    "case",
    [
        Case(model="gpt2", mesh="dp=2"),
        Case(model="gpt2", mesh="dp=2,tp=2", microbatches=2),
        Case(model="llama", mesh="tp=2"),
        Case(model="bert", mesh="dp=4"),
    ],
    ids=str,
)
def test_a_padded_batch_gives_the_loss_and_gradients_of_its_rows(case: Case, rows: int) -> None:
    """Though devices and microbatches have nothing but rows that were added."""
    plan = planned(case)
    batch = padded(inputs_of(plan.program), short(case.model, rows), padding_of(plan.model), whole=True)
    assert {tensor.shape[0] for tensor in batch.values()} == {BATCH}
    found = simulate(plan.program, batch, tensors(case.model))
    is_same(built(case.model, LAYERS), case.model, found.loss, found.gradients, rows)


def test_labels_that_are_not_ignored_in_the_added_rows_would_be_noticed() -> None:
    """The comparison sees one label too many."""
    plan = planned(Case(model="gpt2", mesh="dp=2"))
    batch = padded(inputs_of(plan.program), short("gpt2"), padding_of(plan.model), whole=True)
    batch["labels"][-1, 1] = 0
    found = simulate(plan.program, batch, tensors("gpt2"))
    with pytest.raises(errors.VerificationError):
        is_same(built("gpt2", LAYERS), "gpt2", found.loss, found.gradients)


def trained(parts: bool) -> dict[str, Any]:
    """One step on padded rows; ``parts``: each rank has rows of its own, 4 of them on the first and 1 on the second."""
    model = autopar.parallelize(seeded(), inputs("gpt2"), mesh={"dp": 2}, profile=FAIR)
    batch = short("gpt2")
    if parts:
        mine = slice(0, 4) if dist.get_rank() == 0 else slice(4, ROWS)
        given: Any = model.pad_inputs({name: tensor[mine] for name, tensor in batch.items()})
    else:
        given = model.shard_inputs(batch, pad=True)
    loss = model.train_step(**given)
    full: Any = model.shard_inputs(inputs("gpt2"), pad=True)
    plain: Any = model.shard_inputs(inputs("gpt2"))
    return {
        "loss": loss,
        "gradients": {n: p.grad.full_tensor() for n, p in model.named_parameters() if p.grad is not None},  # type: ignore[attr-defined]
        "a full batch stays": all(torch.equal(full[name], plain[name]) for name in plain),
    }  # fmt: skip


@pytest.mark.parametrize("parts", [False, True], ids=["shard_inputs", "pad_inputs"])
def test_on_processes_a_padded_batch_trains_as_its_rows_do(parts: bool) -> None:
    for found in run_processes(2, trained, parts):
        is_same(seeded(), "gpt2", found["loss"], found["gradients"])
        assert found["a full batch stays"]


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.head(x), y)


def refused() -> dict[str, str]:
    model = autopar.parallelize(seeded(), inputs("gpt2"), mesh={"dp": 1}, profile=FAIR)
    batch = inputs("gpt2")
    wrong = {
        "too many": {name: torch.cat([tensor, tensor[:1]]) for name, tensor in batch.items()},
        "none": {name: tensor[:0] for name, tensor in batch.items()},
        "uneven": {"input_ids": batch["input_ids"][:3], "labels": batch["labels"][:2]},
        "shorter": {name: tensor[:5, :-1] for name, tensor in batch.items()},
    }
    found = {name: _message(model, given) for name, given in wrong.items()}
    found["unpadded"] = _message(model, short("gpt2"), pad=False)
    x, y = torch.randn(8, 16), torch.randn(8, 4)
    means = autopar.parallelize(Regression(), (x, y), mesh={"dp": 1}, profile=FAIR)
    return found | {"mean of squares": _message(means, (x[:5], y[:5]))}


def _message(model: autopar.ParallelModule, given: Any, *, pad: bool = True) -> str:
    with pytest.raises(errors.UsageError) as caught:
        model.shard_inputs(given, pad=pad)
    return str(caught.value)


def test_what_cannot_be_padded_is_refused_with_the_reason() -> None:
    (found,) = run_processes(1, refused)
    assert found["too many"] == "input input_ids has 9 rows; between 1 and 8 can be padded"
    assert found["none"] == "input input_ids has 0 rows; between 1 and 8 can be padded"
    assert found["uneven"] == "input labels has 2 rows, input input_ids has 3"
    assert found["shorter"].endswith("given i64[8,11]")
    assert found["unpadded"].endswith("given i64[5,12]; shard_inputs(batch, pad=True) fills up a smaller batch")
    assert "a batch of 5 rows cannot be padded to 8 without changing the loss: no loss of" in found["mean of squares"]
    assert "drop_last=True" in found["mean of squares"]

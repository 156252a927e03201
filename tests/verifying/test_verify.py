"""``verify`` runs a plan on local processes against one device, and says no where they differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import autopar
from autopar.cli import main
from autopar.ir.errors import MismatchError, UsageError, VerificationError
from autopar.ir.plan import Plan
from autopar.verifying.verify import Given, verified
from tests.models import inputs
from tests.verifying.models import dropped_gpt2, perceptron, tiny_bert, tiny_gpt2

FAIR = str(Path(__file__).parents[1] / "networks" / "fair.toml")
GPT2 = "tests.verifying.models:tiny_gpt2"


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Of eight devices: four process would be as many as a laptop has."""
    model, batch = tiny_gpt2()
    return autopar.plan(model, batch, cluster="1x8xCPU", mesh={"dp": 2, "tp": 4}, profile=FAIR, num_microbatches=2)


@pytest.fixture(scope="module")
def saved(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan.save(path)
    return str(path)


@pytest.mark.slow
def test_a_plan_of_more_devices_is_tried_on_fewer(saved, capsys):
    assert main(["verify", saved, GPT2, "--nproc", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["mesh"], found["num_microbatches"], found["verified"]) == ({"dp": 2, "tp": 2}, 2, True)
    assert found["placed"] == found["operations"]
    assert 0 < found["worst"] <= found["tolerance"]


def test_a_dropped_collective_ends_with_exit_code_8_and_the_tensor(saved, capsys):
    """The debug switch leaves out one sum over devices."""
    assert main(["verify", saved, GPT2, "--nproc", "2", "--drop-collective", "1", "--json"]) == 8
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "VerificationError"
    assert error["details"]["name"] in {"loss", *dict(tiny_gpt2()[0].named_parameters())}
    assert error["details"]["name"] in error["message"]


@pytest.mark.slow
def test_a_loss_function_and_a_factory_may_be_given():
    """The model is made in each process; half precision is verified in double all the same."""
    model, batch = perceptron()
    plan = autopar.plan(model, batch, cluster="1x2xCPU", mesh={"tp": 2}, profile=FAIR, loss_fn=F.mse_loss)
    found = autopar.verify(model, batch, plan, loss_fn=F.mse_loss)
    assert (dict(found.mesh), found.gradients, found.tolerance) == ({"tp": 2}, 4, 1e-10)


@pytest.mark.slow
def test_mixed_precision_is_verified_in_double():
    plan = autopar.plan(tiny_bert().float(), inputs("bert"), cluster="1x2xCPU", mesh={"tp": 2}, profile=FAIR,
                        mixed_precision="bf16")  # fmt: skip
    found = autopar.verify(tiny_bert, inputs("bert"), plan)
    assert found.placed >= found.operations - 3


@pytest.mark.slow
def test_a_model_with_dropout_is_compared_with_the_same_draws():
    plan = autopar.plan(dropped_gpt2(), inputs("gpt2"), cluster="1x2xCPU", mesh={"dp": 2}, profile=FAIR)
    assert autopar.verify(dropped_gpt2, inputs("gpt2"), plan).worst < 1e-10


def test_a_plan_of_another_model_is_refused(plan):
    model, batch = perceptron()
    with pytest.raises(MismatchError):
        verified(Given(model, batch), plan, nproc=2, loss_fn=F.mse_loss)


def test_inputs_on_meta_are_refused(saved, capsys):
    assert main(["verify", saved, "tests.verifying.models:on_meta", "--nproc", "1"]) == 2
    assert "give example inputs that are real tensors" in capsys.readouterr().err


@pytest.mark.slow
def test_no_collective_of_that_number_is_a_usage_error(plan):
    with pytest.raises(UsageError, match="sums over devices; there is no number 999"):
        verified(Given(*tiny_gpt2()), plan, nproc=2, drop=999)


@pytest.mark.slow
def test_a_wrong_program_is_told_by_the_first_tensor(plan):
    with pytest.raises(VerificationError, match=r"(loss|gradient): \S+ differs by"):
        verified(Given(*tiny_gpt2()), plan, nproc=2, drop=0)


ZOO = {
    "gpt2": [], "llama3-8b": ["--batch-size", "8", "--seq-len", "4096", "--zero", "0", "--mixed-precision", "bf16"],
    "bert-large": [], "t5-large": [], "vit-large": [], "resnet50-100k": [],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mesh", ["dp=2,tp=4", "searched"])
@pytest.mark.parametrize("name", ZOO)
def test_models_of_the_zoo_are_verified_on_four_processes(name, mesh, tmp_path, capsys):
    path, pinned = str(tmp_path / "plan.json"), [] if mesh == "searched" else ["--mesh", mesh]
    assert main(["plan", f"zoo:{name}", "--cluster", "1x8xH100-SXM", "-o", path, *ZOO[name], *pinned]) == 0
    capsys.readouterr()
    assert main(["verify", path, f"zoo:{name}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["placed"] >= 0.95 * found["operations"]
    assert pinned == [] or found["mesh"] == {"dp": 2, "tp": 2}


@pytest.mark.slow
def test_the_reference_is_the_model_itself():
    """A model whose weights were changed after planning is verified with those it has."""
    model, batch = perceptron()
    plan = autopar.plan(model, batch, cluster="1x2xCPU", mesh={"dp": 2}, profile=FAIR, loss_fn=F.mse_loss)
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.normal_(parameter)
    assert autopar.verify(model, batch, plan, loss_fn=F.mse_loss, nproc=2).gradients == 4

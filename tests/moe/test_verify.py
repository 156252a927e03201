"""``autopar.verify`` carries plans of mixtures over to processes here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import autopar
from autopar.cli import main
from tests.families import FAMILIES
from tests.families.measure import PROFILE


@pytest.mark.slow
def test_a_plan_with_an_exchange_is_verified() -> None:
    """Every operation stands as in the plan; one device computes in float64 too, which transformers' default cannot."""
    family = FAMILIES["mixtral"]
    model, batch = family.build(), family.batch()
    model.config._experts_implementation = "grouped_mm"  # type: ignore[union-attr]
    plan = autopar.plan(model, batch, cluster="1x4xCPU", mesh={"dp": 2, "ep": 2}, profile=PROFILE)
    found = autopar.verify(model, batch, plan)
    assert found.placed == found.operations
    assert found.worst <= found.tolerance


def mixture(model_type: str, **sizes: Any) -> dict[str, Any]:
    """A configuration as a published model has it, with the auxiliary loss of its router."""
    return {
        "model_type": model_type, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
        "hidden_size": 512, "intermediate_size": 512, "vocab_size": 1024, "num_local_experts": 8,
        "max_position_embeddings": 4096, "output_router_logits": True, **sizes,
    }  # fmt: skip


CONFIGURATIONS = {
    "mixtral": mixture("mixtral", sliding_window=None),
    "gpt-oss": mixture("gpt_oss", sliding_window=128, head_dim=64),  # every other layer sees a window
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_smaller_model_folds_as_the_planned_one_does(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its layers and its windows are enough for that, so that every operation stands as in the plan."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGURATIONS[name]))
    model, path = f"hf:{tmp_path}", str(tmp_path / "saved.plan")
    sizes = ["--cluster", "1x4xA100-SXM-80GB", "--batch-size", "8", "--seq-len", "2048", "--mesh", "dp=2,ep=2"]
    assert main(["plan", model, *sizes, "--mixed-precision", "bf16", "--output", path]) == 0
    assert len(autopar.Plan.load(path).blocks) >= 2  # the first layer begins the sums along the others
    capsys.readouterr()
    assert main(["verify", path, model, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["placed"] == found["operations"] > 100

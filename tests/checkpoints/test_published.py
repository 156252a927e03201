"""Weights as Hugging Face's ``save_pretrained`` leaves them are loaded by parts, whatever their names there.

transformers writes them, by code of its own: the model's own tensors say what has to come back.
"""

from __future__ import annotations

import functools
import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests import harness
from tests.checkpoints import runs
from tests.checkpoints.runs import Case

FULL = {"zero": 3}
CASES = (
    Case(name="tied", mesh={"dp": 2}, options=FULL),
    Case(name="tied", mesh={"tp": 2}),
    Case(name="mixtral", mesh={"ep": 2}),
    Case(name="mixtral", mesh={"dp": 2}, options=FULL),
    Case(name="mixtral", mesh={"tp": 2}),
    Case(name="qwen3-moe", mesh={"ep": 2, "tp": 2}),
    Case(name="deepseek-v3", mesh={"pp": 2, "ep": 2}),
    Case(name="granite-moe", mesh={"dp": 2, "ep": 2}, options=FULL),
    Case(name="gpt-oss", mesh={"ep": 2}),
    Case(name="swin", mesh={"tp": 2}),
)
# What the others hold already, in another way.
SLOW_NAMES = ("granite-moe", "gpt-oss", "swin", "qwen3-moe")
SLOW = [case for case in CASES[1:] if case.name in SLOW_NAMES or case.mesh in ({"tp": 2}, {"dp": 2})]
EXPERT = "model.layers.0.block_sparse_moe.experts.1.w1.weight"


@functools.cache
def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@functools.cache
def written(name: str) -> tuple[dict[str, Tensor], Path]:
    """A model's tensors, which are others than a new one has, and the folder of several files that has them."""
    model, _ = Case(name=name, mesh={}).build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.01 * torch.randn_like(parameter))
    path = Path(folder().name) / name
    model.save_pretrained(path, max_shard_size="40KB")  # type: ignore[operator]  # nn.Module by its type
    assert len(list(path.glob("*.safetensors"))) > 1
    return dict(model.state_dict()), path


def in_files(path: Path) -> dict[str, Tensor]:
    return {name: tensor for file in sorted(path.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def loaded(case: Case) -> list[dict[str, Any]]:
    """What each rank found."""
    return _loaded(case in SLOW)[str(case)]


@functools.cache
def _loaded(slow: bool) -> dict[str, list[dict[str, Any]]]:
    """Of all slow or all quick cases: those of as many processes share them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for size in (2, 4):
        mine = [case for case in CASES if math.prod(case.mesh.values()) == size and (case in SLOW) == slow]
        tasks = [(runs.pretrained, (case, str(written(case.name)[1]))) for case in mine]
        by_rank = harness.run_processes(size, harness.each, tasks, timeout_s=240)
        found |= {str(case): [results[at] for results in by_rank] for at, case in enumerate(mine)}
    return found


def each(cases: Sequence[Case]) -> Any:
    marked = [pytest.param(case, id=str(case), marks=[pytest.mark.slow] * (case in SLOW)) for case in cases]
    return pytest.mark.parametrize("case", marked)


@each(CASES)
def test_weights_of_hugging_face_are_loaded_by_parts(case: Case) -> None:
    for found in loaded(case):
        assert runs.same(found["model"], written(case.name)[0])
        assert "has no optimizer: give None" in found["optimizer"]


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe", "deepseek-v3", "granite-moe", "swin"])
def test_files_name_tensors_otherwise(name: str) -> None:
    """Experts one by one, experts of other names, and parts of attention apart: what is loaded above is not theirs."""
    tensors, path = written(name)
    assert len(in_files(path).keys() - tensors.keys()) > 5


@each([case for case in CASES if case.mesh.get("ep", 1) > 1])
def test_a_rank_reads_its_own_experts_alone(case: Case) -> None:
    """And each of them is read by somebody."""
    single = len([*filter(runs.single, in_files(written(case.name)[1]))])
    read = [found["experts"] for found in loaded(case)]
    assert max(read) <= single // case.mesh["ep"]
    assert sum(read) >= single


def changed(name: str, change: Callable[[dict[str, Tensor]], object]) -> str:
    """A folder with a model's tensors, changed."""
    path = Path(tempfile.mkdtemp(dir=folder().name))
    source = written(name)[1]
    tensors = in_files(source)
    change(tensors)
    save_file(tensors, path / "model.safetensors")
    shutil.copy(source / "config.json", path)
    return str(path)


def test_weights_that_do_not_fit_change_nothing() -> None:
    paths = {
        "no expert": changed("mixtral", lambda tensors: tensors.pop(EXPERT)),
        "no head": changed("mixtral", lambda tensors: tensors.pop("lm_head.weight")),
        "too many": changed("mixtral", lambda tensors: tensors.update({"model.extra": torch.ones(2)})),
        "another shape": changed("mixtral", lambda tensors: tensors.update({EXPERT: torch.ones(3, 3)})),
    }
    for found in harness.run_processes(2, runs.refused_weights, Case(name="mixtral", mesh={"ep": 2}), paths):
        assert "model.layers.0.mlp.experts.gate_up_proj cannot be made of" in found["no expert"]
        assert "missing lm_head.weight" in found["no head"]
        assert "unexpected model.extra" in found["too many"]
        assert "model.layers.0.mlp.experts.gate_up_proj cannot be made of" in found["another shape"]
        assert found["unchanged"]


def test_what_a_class_does_without_may_be_there() -> None:
    """DeepSeek-V3's published files have a layer that predicts more tokens, which transformers has not."""
    path = changed("deepseek-v3", lambda tensors: tensors.update({"model.layers.61.norm.weight": torch.ones(2)}))
    for found in harness.run_processes(2, runs.pretrained, Case(name="deepseek-v3", mesh={"ep": 2}), path):
        assert runs.same(found["model"], written("deepseek-v3")[0])


def test_weights_of_another_precision_are_loaded() -> None:
    path = changed("mixtral", lambda all_: all_.update({name: each.bfloat16() for name, each in all_.items()}))
    wanted = {name: tensor.bfloat16().to(tensor.dtype) for name, tensor in written("mixtral")[0].items()}
    for found in harness.run_processes(2, runs.pretrained, Case(name="mixtral", mesh={"ep": 2}), path):
        assert runs.same(found["model"], wanted)

"""The benchmarks' own arithmetic, and that each command runs on a tiny model. No figure is held to a limit here."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autopar import errors
from benchmarks import gpu, published, recipes, runtime, search
from benchmarks.paired import estimate

ROOT = Path(__file__).parents[1]


def test_the_interval_of_a_median_is_that_of_the_binomial_table() -> None:
    """30 values: the 10th and the 21st (95.7 %); 6 values: the ends (96.9 %)."""
    thirty = estimate([float(i) for i in range(1, 31)])
    assert (thirty.median, thirty.low, thirty.high) == (15.5, 10, 21)
    six = estimate([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    assert (six.low, six.high, six.half_width) == (1, 6, 2.5)
    with pytest.raises(ValueError, match="at least 6"):
        estimate([1.0] * 5)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    draw = random.Random(0)
    held = 0
    for _ in range(2000):
        found = estimate([draw.lognormvariate(0, 0.3) for _ in range(30)])
        held += found.low <= 1.0 <= found.high
    assert 0.94 < held / 2000 < 0.975


def test_too_few_pairs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        runtime.main(["--pairs", "5"])
    assert "at least 6 pairs" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_gpu_benchmark_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    assert "--device cpu" in capsys.readouterr().err


def run(tmp_path: Path, *words: str) -> str:
    command = [sys.executable, "-W", "ignore", "-m", *words, "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert not done.returncode or {"benchmarks.runtime", "benchmarks.moe"} & {*words}, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_benchmark_of_one_gpu_runs_on_a_cpu(tmp_path: Path) -> None:
    """Same losses both ways, eager and compiled, and a file with every figure."""
    run(tmp_path, "benchmarks.gpu", "--device", "cpu", "--steps", "1", "--turns", "1", "--backend", "aot_eager")
    found = json.loads((tmp_path / "gpu-tried-on-cpu.json").read_text())
    assert [each["compiled"] for each in found["runs"]] == [None, "aot_eager"]
    assert all(each["ratio_of_throughput"] > 0 and each["planned_peak_bytes"] for each in found["runs"])


@pytest.mark.slow
def test_the_benchmark_of_the_runtime_runs(tmp_path: Path) -> None:
    """Every case of one and two processes: equal losses, a ratio with its interval."""
    run(tmp_path, "benchmarks.runtime", "--tiny", "--pairs", "6", "--processes", "1", "2")
    found = json.loads((tmp_path / "runtime.json").read_text())
    assert [each["case"] for each in found["cases"]] == ["1 process", "tp 2", "dp 2, ZeRO 3", "dp 2, ZeRO 0"]
    assert all(each["ratio"]["low"] <= each["ratio"]["median"] <= each["ratio"]["high"] for each in found["cases"])


@pytest.mark.slow
def test_the_benchmark_of_the_search_takes_models_by_name_and_from_a_folder(tmp_path: Path) -> None:
    """Each in a process of its own; what is refused is told with its error, and counts unless it does not fit."""
    small = search.Case(model="zoo:gpt2", cluster="1x2xH100-SXM", batch=4, length=32, layers=2)
    (tmp_path / "unseen").mkdir()
    (tmp_path / "unseen" / "config.json").write_text(json.dumps(search.UNSEEN))
    unseen = replace(small, model="hf:unseen", layers=None)
    named, new, refused = (
        search.measured(case, 1, tmp_path) for case in (small, unseen, replace(small, cluster="1x2xP100-PCIE-16GB"))
    )
    assert named["gap"] <= 1 and new["mesh"] and str(tmp_path) not in json.dumps(new)
    assert [search.row(row).split(":")[0] for row in (named, new, refused)] == ["zoo", "hf", "zoo"]
    assert "bf16" in refused["error"]["message"] and len(list(search.broken(refused))) == 1
    too_large = {"case": "x", "error": {"code": search.INFEASIBLE, "message": "not enough"}}
    assert errors.InfeasibleError.__name__ == search.INFEASIBLE and list(search.broken(too_large)) == []


def test_a_plan_that_a_recipe_beats_is_told_and_a_difference_without_a_cause() -> None:
    row: dict[str, Any] = {
        "model": "a", "cluster": "b", "objective_s": 1.0, "simulated_s": 1.1, "unexplained_s": 0.05,
        "recipes": {"zero3": {"objective_s": 1.0, "simulated_s": 1.0}, "gpipe": {"why": "too large"}},
    }  # fmt: skip
    assert recipes.best_recipe(row) == ("zero3", 1.0)
    slower, uncounted = recipes.broken(row)
    assert "zero3 1 s" in slower and "0.05 s of a difference of 0.1 s" in uncounted
    good = {**row, "unexplained_s": 0.0005, "recipes": {"gpipe": {"why": "too large"}}}
    assert list(recipes.broken(good)) == [] and "no recipe fits" in recipes.line(good)


@pytest.mark.slow
def test_no_recipe_of_gpt2_is_faster_than_its_plan_by_the_simulator() -> None:
    """On two nodes of V100, where sums of small gradients at the end of a step decide between meshes."""
    row = recipes.measured("gpt2", "2x8xV100-SXM2-32GB@32Gb/s")
    assert list(recipes.broken(row)) == [] and recipes.best_recipe(row) is not None


def test_a_prediction_is_told_apart_from_what_was_published() -> None:
    row = published.Row(
        system="a", setting="b", published="1 to 2", unit="times", predict=lambda: 3.0, low=1.0, high=2.0
    )
    assert [published.verdict(row, figure) for figure in (0.5, 1.5, 3.0)] == ["-50%", "inside", "+50%"]


@pytest.mark.slow
def test_the_published_benchmark_runs(tmp_path: Path) -> None:
    out = run(tmp_path, "benchmarks.published", "--only", "Llama-3-8B")
    (row,) = json.loads((tmp_path / "published.json").read_text())["rows"]
    assert "5762 eager" in out and row["predicted"] > 0


def test_a_published_row_that_does_not_exist_is_answered_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        published.main(["--only", "GNMT"])
    assert refused.value.code == 2
    assert "BERT-Large on 8 V100 and 8 P100" in capsys.readouterr().err


@pytest.mark.slow
def test_unequal_devices_are_near_the_proportional_bound(tmp_path: Path) -> None:
    """All of BERT-Large, from peak rates alone, gradients added up between microbatches among them."""
    run(tmp_path, "benchmarks.published", "--only", "P100")
    (row,) = json.loads((tmp_path / "published.json").read_text())["rows"]
    assert 0.88 * 1.344 <= row["predicted"] <= 1.344


@pytest.mark.slow
def test_the_benchmark_of_predictions_runs(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[device.CPU]\nfp32_tflops = 0.1\n")
    out = run(tmp_path, "benchmarks.predicted", "--tiny", "--profile", str(tmp_path / "mine.toml"))
    assert len([line for line in out.splitlines() if " ms " in line]) == 18


@pytest.mark.slow
def test_the_benchmark_of_experts_runs(tmp_path: Path) -> None:
    """Equal outputs, the fastest rival named, a ratio with its interval, and the question of more experts."""
    out = run(tmp_path, "benchmarks.moe", "--tiny", "--pairs", "6", "--device", "cpu")
    found = json.loads((tmp_path / "moe.json").read_text())
    first, more = found["cases"]
    assert first["against"] in ("grouped_mm", "batched_mm", "eager", "naive")
    assert more["against"] == "autopar, 8 experts"
    assert all(each["ratio"]["low"] <= each["ratio"]["median"] <= each["ratio"]["high"] for each in found["cases"])
    assert "| 64 experts: batch 2" in out

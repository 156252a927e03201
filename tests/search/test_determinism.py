"""Equal problems have equal plans, byte for byte, whatever the order of sets and the number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import sys, autopar
from autopar.models import resolve
name, cluster, budget, runs = sys.argv[1:5]
for _ in range(int(runs)):
    model = resolve(f"zoo:{name}", batch_size=64, seq_len=256, layers=4)
    plan = autopar.plan(
        model.model, model.example_inputs, cluster=cluster, mixed_precision="bf16",
        memory_budget=None if budget == "-" else budget,
    )
    print(plan.plan_sha256)
"""
RUNS = 5


def hashes(name: str, cluster: str, budget: str, *, seed: int, threads: int, runs: int) -> set[str]:
    environment = {
        **os.environ, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads),
    }  # fmt: skip
    found = subprocess.run(
        [sys.executable, "-c", CODE, name, cluster, budget, str(runs)], cwd=ROOT, env=environment, check=True,
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    return set(found.stdout.split())


def test_another_hash_seed_gives_the_same_plan() -> None:
    found = [hashes("gpt2", "1x4xH100-SXM", "-", seed=seed, threads=1, runs=1) for seed in (1, 2)]
    assert found[0] == found[1]
    assert len(found[0]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cluster", "budget"),
    [("llama3-8b", "2x4xH100-SXM", "-"), ("gpt2", "2x4xH100-SXM", "1GB"), ("t5-large", "1x8xA100-SXM-80GB", "-")],
)
def test_the_same_bytes_in_five_runs_of_three_seeds_and_two_numbers_of_threads(
    name: str, cluster: str, budget: str
) -> None:
    found: set[str] = set()
    for seed in range(3):
        for threads in (1, 2):
            found |= hashes(name, cluster, budget, seed=seed, threads=threads, runs=RUNS)
    assert len(found) == 1, found

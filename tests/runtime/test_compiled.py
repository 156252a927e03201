"""torch.compile of a program's blocks: each distinct block once, with its collectives, and the same numbers."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch._dynamo import lookup_backend, register_backend
from torch._dynamo.utils import counters

import autopar
from autopar.runtime.parity import compare
from tests.families.measure import PROFILE
from tests.harness import each, run_processes
from tests.models import gpt2, inputs
from tests.randomness.processes import Run, trained
from tests.runtime import trained as by_hand

# All with dropout. The backend that counts hands its graphs to one that needs no C++ compiler.
RUNS = [
    Run(model="gpt2", mesh={"dp": 2}, options={"zero": 0}),
    Run(model="gpt2", mesh={"tp": 2}, options={"recompute": "full"}),
    Run(model="gpt2", mesh={"tp": 2}, options={"num_microbatches": 2, "recompute": "none"}),
]


def counting() -> list[list[str]]:
    """Registers the backend ``counted``; what each graph that it compiled calls."""
    made: list[list[str]] = []

    @register_backend(name="counted")
    def counted(module: torch.fx.GraphModule, inputs: Any) -> Any:
        made.append([str(node.target) for node in module.graph.nodes])
        return lookup_backend("aot_eager")(module, inputs)

    return made


def both(runs: list[Run]) -> list[dict[str, Any]]:
    """Each run compiled and not, and what was compiled."""
    made, found = counting(), []
    make = autopar.parallelize
    for run in runs:
        made.clear()
        modules: list[Any] = []

        def kept(*args: Any, modules: list[Any] = modules, **kwargs: Any) -> Any:
            modules.append(make(*args, **kwargs))
            return modules[-1]

        with mock.patch.object(autopar, "parallelize", kept):
            fast = trained(replace(run, options={**run.options, "compile": "counted"}))
        graph = modules[0]._program.graph
        calls = [node for node in graph.nodes if node.target == "call"]
        found.append({
            "compiled": fast, "plain": trained(run), "graphs": len(made),
            "blocks": len({node.attr("block") for node in calls}),
            "instances": sum(int(str(node.attr("count"))) for node in calls),
            "breaks": dict(counters["graph_break"]),
        })  # fmt: skip
    return found


@pytest.mark.slow
def test_each_distinct_block_is_compiled_once() -> None:
    """With collectives, dropout, microbatches and recomputation in it; losses and gradients are those of eager mode."""
    for by_run in run_processes(2, both, RUNS, timeout_s=250):
        for run, found in zip(RUNS, by_run, strict=True):
            assert found["graphs"] == found["blocks"] <= found["instances"], str(run)
            assert not found["breaks"], str(run)
            fast, plain = found["compiled"], found["plain"]
            for at, (loss, gradients) in enumerate(zip(plain["losses"], plain["gradients"], strict=True)):
                compare({"loss": fast["losses"][at]}, {"loss": loss}, tol=1e-10, what=f"{run}: loss {at}")
                compare(fast["gradients"][at], gradients, tol=1e-10, what=f"{run}: gradients {at}")


def communicates(case: dict[str, Any]) -> dict[str, Any]:
    """What a compiled block with tensor parallelism calls, and how often it was compiled."""
    made = counting()
    model = by_hand.make(case, compile="counted")
    for step in range(2):
        model.train_step(**by_hand.local(model, step))
    return {"graphs": len(made), "calls": made[0]}


def test_collectives_are_in_the_compiled_graph() -> None:
    """A block that ends in a sum over tp compiles whole, one graph for its three instances."""
    for found in run_processes(2, communicates, {"tp": 2}):
        assert found["graphs"] == 1
        assert any("autograd_function_apply" in call or "all_reduce" in call for call in found["calls"])


def warned(recompute: str, compile: str | bool) -> list[str]:
    """What ``parallelize`` says of the recomputation, and how its blocks are then recomputed."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        autopar.parallelize(
            gpt2(), inputs("gpt2"), mesh={"tp": 2}, profile=PROFILE, recompute=recompute, compile=compile
        )
    return [str(entry.message) for entry in told if "recomputation" in str(entry.message)]


@pytest.mark.slow
def test_a_plan_that_recomputes_selectively_says_that_compiled_blocks_do_not() -> None:
    cases: list[tuple[str, str | bool]] = [("selective", "aot_eager"), ("selective", False), ("full", "aot_eager")]
    first, second = run_processes(2, each, [(warned, case) for case in cases])
    assert [len(told) for told in first] == [1, 0, 0]
    assert "so recomputed in full" in first[0][0]
    assert second == [[], [], []]


@pytest.mark.slow
def test_the_default_backend_compiles_too() -> None:
    """Inductor, which needs a C++ compiler."""
    fast = replace(RUNS[1], options={**RUNS[1].options, "compile": True})
    work = [(trained, (fast,)), (trained, (RUNS[1],))]
    for fast, plain in run_processes(2, each, work, timeout_s=280):
        for at, (loss, gradients) in enumerate(zip(plain["losses"], plain["gradients"], strict=True)):
            assert compare({"loss": fast["losses"][at]}, {"loss": loss}, tol=1e-8, what=f"loss {at}") <= 1e-8
            assert compare(fast["gradients"][at], gradients, tol=1e-8, what=f"gradients {at}") <= 1e-8

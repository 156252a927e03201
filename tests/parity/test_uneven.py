"""Batches, heads, vocabularies and classes that an axis does not divide: right, or refused in clear words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import autopar
from autopar.ir.errors import UsageError
from autopar.ir.layout import Layout, Shard
from autopar.ir.mesh import Mesh
from autopar.ir.program import Program
from tests.models import SEQ, gpt2, llama
from tests.parity.any_model import check_against_torch, simulated
from tests.parity.planned import NETWORKS, mesh_of

FAIR = str(NETWORKS / "fair.toml")
ODD: dict[str, Any] = {"vocab_size": 61, "n_head": 5, "n_embd": 40}


def batch(samples: int = 4, vocab: int = 61) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(0)
    labels = torch.randint(0, vocab, (samples, SEQ), generator=made)
    labels[0, 2:] = -100
    return {"input_ids": torch.randint(0, vocab, (samples, SEQ), generator=made), "labels": labels}


def uneven(program: Program) -> list[str]:
    """Values that an axis splits although it does not divide them."""
    return [
        f"{value.name}: {value.layout}"
        for graph in (program.graph, *program.graph.blocks)
        for node in graph.nodes
        for value in node.results
        if value.layout is not None and value.layout.problem(value.type.shape)
    ]


def split_dims(program: Program, target: str) -> set[int]:
    """Dims of the results of an operation that some axis has."""
    return {
        placement.dim
        for graph in (program.graph, *program.graph.blocks)
        for node in graph.nodes
        if node.target == target and node.result.layout is not None
        for placement in node.result.layout.placements
        if isinstance(placement, Shard)
    }


@pytest.mark.parametrize("mesh", ["tp=2", "tp=4", "x=3", "dp=2,tp=2"])
@pytest.mark.parametrize("seed", [None, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 6))])
def test_odd_heads_and_vocabulary_are_right(mesh: str, seed: int | None) -> None:
    """GPT-2 with 5 heads and 61 words: the heads stay whole, the words may lie in parts of unequal size."""
    model = gpt2(**ODD)
    program, found = simulated(model, batch(), mesh_of(mesh), seed=seed)
    check_against_torch(found, model, batch(), 1e-10)
    assert uneven(program) == []
    assert 1 not in split_dims(program, "aten.scaled_dot_product_attention.default")


@pytest.mark.parametrize(
    ("mesh", "ways"), [*(pytest.param(f"tp={n}", n, marks=pytest.mark.slow) for n in (2, 4)), ("x=3", 3)]
)
def test_a_vocabulary_is_split_into_parts_of_unequal_size(mesh: str, ways: int) -> None:
    """One of the random plans keeps it so; all compute what one device computes."""
    stored: set[str] = set()
    for seed in range(1, 25):
        model = gpt2(**ODD)
        program, found = simulated(model, batch(), mesh_of(mesh), seed=seed)
        check_against_torch(found, model, batch(), 1e-10)
        words = next(p for p in program.parameters if p.fqn == "transformer.wte.weight")
        stored.add(str(words.layout.local_shape(words.type.shape)))
        if str((-(-61 // ways), ODD["n_embd"])) in stored:
            return
    raise AssertionError(stored)


def test_nothing_is_left_for_a_device_of_too_many() -> None:
    """61 words on 16 devices in parts of 4 would end at the 16th; on 32 in parts of 2 the last would have none."""
    mesh = Mesh((("x", 16), ("y", 32)))
    assert Layout.parse("x:S(0)", mesh).problem((61, 8)) is None
    assert Layout.parse("y:S(0)", mesh).problem((61, 8)) is not None


@pytest.mark.parametrize("seed", [None, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 9))])
def test_fewer_key_heads_than_devices(seed: int | None) -> None:
    """Two key heads on four devices: queries may be split inside their group, keys and values stay whole."""
    model = llama(num_key_value_heads=2)
    program, found = simulated(model, batch(vocab=64), mesh_of("tp=4"), seed=seed)
    check_against_torch(found, model, batch(vocab=64), 1e-6)
    assert uneven(program) == []


def test_the_best_plan_splits_queries_of_a_shared_key_head() -> None:
    """So few key heads are no reason to do attention on every device."""
    program, _ = simulated(llama(num_key_value_heads=2), batch(vocab=64), mesh_of("tp=4"))
    assert split_dims(program, "aten.scaled_dot_product_attention.default") == {1}


def test_a_plan_says_which_parameters_stay_whole() -> None:
    """The heads are on no axis; the plan's placements show it."""
    plan = autopar.plan(gpt2(**ODD), batch(), cluster="1x4xCPU", mesh={"tp": 4}, profile=FAIR)
    assert plan.placements["transformer.wpe.weight"]["tp"] in ("R", "S(1)")
    assert any("S(" in placed["tp"] for placed in plan.placements.values())


def six() -> tuple[Any, dict[str, Tensor]]:
    return gpt2(), batch(6, 64)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mesh": {"dp": 4}}, ["dp=4", "batch of 6", "1, 2, 3, 6"]),
        ({"mesh": {"cp": 4, "dp": -1}, "cluster": "1x8xCPU"}, []),
        ({"mesh": {"dp": 2, "cp": 5}, "cluster": "1x10xCPU"}, ["cp=5", "sequence of 12", "1, 2, 3, 4, 6, 12"]),
        ({"mesh": {"dp": 2, "tp": 2}, "num_microbatches": 2}, ["num_microbatches=2", "3 samples", "1, 3"]),
    ],
)
def test_what_does_not_divide_is_refused_with_the_sizes_that_do(options: dict[str, Any], words: list[str]) -> None:
    """Never a batch that every device repeats."""
    model, example = six()
    arguments = {"cluster": "1x4xCPU", **options}
    if not words:
        assert autopar.plan(model, example, **arguments).mesh == {"cp": 4, "dp": 2}
        return
    with pytest.raises(UsageError) as caught:
        autopar.plan(model, example, **arguments)
    for word in words:
        assert word in str(caught.value)


def test_a_free_size_skips_what_does_not_divide() -> None:
    """Six samples on four devices: dp=4 is left out, not planned as a repeated batch."""
    model, example = six()
    plan = autopar.plan(model, example, cluster="1x4xCPU", mesh={"dp": -1, "tp": -1})
    assert plan.mesh["dp"] in (1, 2)

"""Through the public API, on gloo processes: training a sharded model is training the model.

Everything is compared with the unmodified model on one device, by the rule of ``runtime/parity``: float64,
two accumulated ``train_step``s, losses, every gradient, the norm, and parameters after three AdamW steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import autopar
from autopar.runtime.parity import compare
from tests import harness
from tests.parity import processes
from tests.parity.processes import ACCUMULATED, BUILDERS, LOSSES, Case

DP2, TP2, CP2, DP2TP2, TP4 = {"dp": 2}, {"tp": 2}, {"cp": 2}, {"dp": 2, "tp": 2}, {"tp": 4}
MODELS = ("gpt2", "llama", "bert")
# one layer of a block laid out otherwise than the rest
APART = [autopar.split("model.layers.1.mlp.up_proj.weight", dim=1, axis="tp")]
TWO = [
    *(Case(model=m, mesh=mesh) for m in MODELS for mesh in (DP2, TP2)),
    Case(model="bert", mesh=None),
    Case(model="gpt2 as it is", mesh=DP2),
    Case(model="gpt2", mesh=DP2, options={"zero": 0, "num_microbatches": 2, "recompute": "full"}),
    Case(model="bert", mesh=DP2, options={"zero": 3, "num_microbatches": 2, "recompute": "none"}),
    Case(model="gpt2", mesh=DP2, options={"zero": 1, "num_microbatches": 4, "recompute": "selective"}),
    Case(model="llama", mesh=DP2, options={"zero": 2, "num_microbatches": 4, "recompute": "selective"}),
    Case(model="bert", mesh=TP2, options={"zero": 0, "num_microbatches": 2, "recompute": "selective"}),
    Case(model="llama", mesh=CP2),
    Case(model="gpt2", mesh=TP2, dtype="float32"),
    Case(model="bert frozen", mesh=DP2),
    Case(model="perceptron", mesh=DP2),
    Case(model="encoder", mesh=TP2),
    Case(model="llama", mesh=TP2, options={"constraints": APART}),
]
FOUR = [
    Case(model="gpt2", mesh=DP2TP2),
    Case(model="gpt2", mesh=None),
]
MORE_OF_TWO = [
    *(Case(model=m, mesh=None) for m in ("gpt2", "llama")),
    *(Case(model=m, mesh=CP2) for m in ("gpt2", "bert")),
    *(
        Case(model=m, mesh=mesh, options={"zero": zero, "num_microbatches": n, "recompute": recompute})
        for m in MODELS for mesh in (DP2, TP2)
        for zero, n, recompute in ((0, 2, "none"), (3, 1, "full"), (3, 2, "full"))
    ),
    *(Case(model=m, mesh=mesh, dtype="float32") for m in MODELS for mesh in (DP2, TP2)),
    *(Case(model=m, mesh=mesh, network="free") for m in MODELS for mesh in (DP2, TP2)),
    Case(model="gpt2 as it is", mesh=TP2),
    Case(model="bert frozen", mesh=TP2),
    Case(model="perceptron", mesh=TP2),
    Case(model="perceptron frozen", mesh=DP2), Case(model="perceptron frozen", mesh=TP2),
    Case(model="encoder", mesh=DP2), Case(model="encoder", mesh=CP2),
]  # fmt: skip
MORE_OF_FOUR = [
    *(Case(model=m, mesh=None) for m in ("llama", "bert")),
    *(Case(model=m, mesh=None, network="free") for m in MODELS),
    *(
        Case(model=m, mesh=DP2TP2, options={"zero": zero, "num_microbatches": 2, "recompute": recompute})
        for m in MODELS for zero, recompute in ((0, "full"), (3, "none"))
    ),
    *(
        Case(model=m, mesh=mesh, options={"zero": zero, "num_microbatches": n, "recompute": recompute})
        for m in ("gpt2", "llama") for mesh, n in (({"dp": 4}, 2), (DP2TP2, 4))
        for zero, recompute in ((1, "selective"), (2, "full"), (3, "selective"))
    ),
    *(Case(model=m, mesh=TP4) for m in MODELS),
    *(Case(model=m, mesh=DP2TP2) for m in ("llama", "bert")),
    *(Case(model=m, mesh={"dp": 2, "cp": 2}) for m in MODELS),
    Case(model="gpt2 as it is", mesh=DP2TP2),
    Case(model="encoder", mesh=DP2TP2),
]  # fmt: skip
ONE = [Case(model="gpt2", mesh=None), Case(model="perceptron", mesh=None)]
META = [Case(model=m, mesh=None if m == "perceptron" else {"dp": -1, "tp": 1}) for m in (*MODELS, "perceptron")]
META_WORLDS = (1, 2, 4)

LAUNCHES: dict[str, tuple[int, list[Case]]] = {
    "one": (1, ONE), "two": (2, TWO), "four": (4, FOUR),
    "more of two": (2, MORE_OF_TWO), "more of four": (4, MORE_OF_FOUR),
}  # fmt: skip
PRELOADED = [
    "torch.distributed.tensor", "torch.distributed.fsdp", "tests.parity.processes", "autopar.api",
    *(f"transformers.models.{name}.modeling_{name}" for name in MODELS),
]  # fmt: skip


@functools.cache
def launched(launch: str) -> list[list[Any]]:
    """Results by rank and case: the cases of a launch share its processes. Worlds also make meta models."""
    harness._context.set_forkserver_preload(PRELOADED)
    size, cases = LAUNCHES[launch]
    work: list[harness.Work] = [(processes.train, (case,)) for case in cases]
    if not launch.startswith("more"):
        work += [(processes.meta_state, (case,)) for case in META]
    return harness.run_processes(size, harness.each, work, timeout_s=280)


def trained(launch: str, case: Case) -> list[Any]:
    """What each rank found."""
    at = LAUNCHES[launch][1].index(case)
    return [by_case[at] for by_case in launched(launch)]


@functools.cache
def _expected(model: str, dtype: str) -> dict[str, Any]:
    return processes.expected(Case(model=model, mesh=None, dtype=dtype))


def expected(case: Case) -> dict[str, Any]:
    return _expected(case.model, case.dtype)


def cases(select: Callable[[Case], bool] = lambda case: True, *, of: tuple[str, ...] = tuple(LAUNCHES)) -> Any:
    """Every case of every launch, further ones marked slow."""
    chosen = [
        pytest.param(launch, case, id=f"{launch.removeprefix('more of ')}-{case}",
                     marks=[] if launch in ("one", "four") else [pytest.mark.slow])
        for launch in of for case in LAUNCHES[launch][1] if select(case)
    ]  # fmt: skip
    return pytest.mark.parametrize(("launch", "case"), chosen)


def same(found: dict[str, Tensor], wanted: dict[str, Tensor], case: Case, what: str) -> None:
    assert set(found) == set(wanted)
    compare(found, wanted, tol=case.tolerance, what=f"{case}: {what}")


@cases()
def test_training_is_that_of_one_device(launch: str, case: Case) -> None:
    """Losses, gradients after two accumulated steps, their norm, and parameters after three AdamW steps."""
    wanted = expected(case)
    for found in trained(launch, case):
        losses = zip(found["losses"], wanted["losses"], strict=True)
        for at, (loss, single) in enumerate(losses):
            same({"loss": loss}, {"loss": single}, case, f"loss of step {at // ACCUMULATED}")
        same(found["gradients"], wanted["gradients"], case, "gradients")
        same({"norm": found["norm"]}, {"norm": wanted["norm"]}, case, "norm")
        same(found["state"], wanted["state"], case, "parameters after training")


@cases()
def test_plain_forward_gives_the_models_own_output(launch: str, case: Case) -> None:
    """The model's own class, whole logits by ``full_tensor``, and ``loss.backward()`` with whole gradients."""
    wanted = expected(case)["forward"]
    for rank in trained(launch, case):
        found = rank["forward"]
        assert found["class"] == wanted["class"]
        for part in ("output", "loss"):
            same({part: found[part]}, {part: wanted[part]}, case, part)
        same(found["gradients"], wanted["gradients"], case, "gradients of the plain forward")


@cases(lambda case: case.mesh is not None and "frozen" not in case.model)
def test_the_work_is_split(launch: str, case: Case) -> None:
    """At least 95 % of matrix products on every axis, and what tp stores of all matrices."""
    for found in trained(launch, case):
        assert found["mesh"] == case.mesh
        assert set(found["split"]) == {axis for axis, size in found["mesh"].items() if size > 1}
        assert min(found["split"].values()) >= 0.95, found["split"]
        degree = found["mesh"].get("tp", 1)
        kept = [part for name, part in found["kept"].items() if "norm" not in name.lower() and "ln_" not in name]
        assert sum(mine for mine, _ in kept) <= 1.2 / degree * sum(whole for _, whole in kept)


@cases(lambda case: case.mesh is None, of=("two", "four", "more of two", "more of four"))
def test_a_searched_mesh_uses_every_device(launch: str, case: Case) -> None:
    """A tiny model on a quick network is worth splitting; all ranks have one plan."""
    size = LAUNCHES[launch][0]
    ranks = trained(launch, case)
    assert {math.prod(found["mesh"].values()) for found in ranks} == {size}
    assert len({found["sha256"] for found in ranks}) == 1
    assert sum(found["split"].get(axis, 0) for found in ranks for axis in found["mesh"]) > 0


@cases(lambda case: "dp" in (case.mesh or {}) and case.model in MODELS)
def test_data_parallel_ranks_have_data_and_labels_of_their_own(launch: str, case: Case) -> None:
    """Parts differ between data-parallel ranks, also in their number of valid labels, and agree on one."""
    labels: dict[int, set[int]] = {}
    for found in trained(launch, case):
        rank, size = found["place"]
        assert size == (case.mesh or {})["dp"]
        labels.setdefault(rank, set()).add(found["labels"])
    assert {len(counts) for counts in labels.values()} == {1}
    assert labels[0] != labels[1]


@cases(lambda case: "zero" in case.options)
def test_what_is_pinned_is_what_runs(launch: str, case: Case) -> None:
    """ZeRO level, microbatches and recomputation are those asked for."""
    found = trained(launch, case)[0]
    assert found["microbatches"] == case.options["num_microbatches"]
    assert set(found["zero"].values()) == {case.options["zero"] if "dp" in found["mesh"] else 0}
    assert {text for name, text in found["recompute"].items() if name} == {case.options["recompute"]}


@cases(of=("two", "four"))
def test_the_full_state_dict_loads_into_the_original_model(launch: str, case: Case) -> None:
    """Strictly: every name and shape, second names of tied weights included."""
    model = case.build()
    for found in trained(launch, case):
        model.load_state_dict(found["state"], strict=True)
    same(dict(model.state_dict()), expected(case)["state"], case, "loaded state")


@pytest.mark.slow
@pytest.mark.parametrize("model", [*MODELS, "perceptron"])
def test_a_model_on_meta_is_filled_alike_on_every_rank_and_world(model: str) -> None:
    """By its own initialiser: no NaN, equal bits in worlds of 1, 2 and 4, deviation as the initialiser says."""
    at = next(i for i, case in enumerate(META) if case.model == model)
    launches = [name for name in ("one", "two", "four") if LAUNCHES[name][0] in META_WORLDS]
    states = [by_case[len(LAUNCHES[name][1]) + at] for name in launches for by_case in launched(name)]
    assert len(states) == sum(META_WORLDS)
    first = states[0]
    assert set(first) == set(BUILDERS[model]().state_dict())
    for name, tensor in first.items():
        assert not torch.isnan(tensor).any(), name
        assert all(torch.equal(tensor, other[name]) for other in states), name
    weights = [t for name, t in first.items() if t.dim() == 2]
    assert all(float(weight.std()) > 1e-3 for weight in weights)


@pytest.mark.slow
def test_weights_without_a_gradient_keep_their_value() -> None:
    """Frozen parameters are neither trained nor given a gradient, tied ones included."""
    case = next(case for case in TWO if case.model == "bert frozen")
    start = case.build()
    for found in trained("two", case):
        for name, parameter in start.named_parameters():
            assert (name in found["gradients"]) == parameter.requires_grad, name
            assert parameter.requires_grad or torch.equal(found["state"][name], parameter), name


def test_losses_given_by_the_user_are_covered() -> None:
    """Positional inputs with a target, mean squared error and cross-entropy."""
    assert {case.model for case in TWO} & set(LOSSES) == {"perceptron", "encoder"}

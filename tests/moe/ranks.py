"""What a process does with a mixture of experts, through the public API."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

import autopar
from autopar.runtime.parity import compare
from tests.families import FAMILIES, Family
from tests.families.family import causal_batch, settled
from tests.families.measure import PROFILE, alone
from tests.families.mixtures import mixtral
from tests.families.plain import Mixture
from tests.families.ranks import stepped
from tests.parity.split import split_share


def _layer(name: str, **router: Any) -> Family:
    return Family(name=name, build=lambda: settled(Mixture(8, **router)), batch=causal_batch, tolerance=1e-10)


# Besides all families: our own layer with each kind of router, and a mixture with few experts.
LAYERS: dict[str, Family] = {
    "top-1": _layer("top-1", top_k=1, capacity_factor=None),
    "top-2": _layer("top-2", top_k=2, capacity_factor=None, normalize=True),
    "top-2-capacity": _layer("top-2-capacity", top_k=2, capacity_factor=0.8),
    "2-top-1": _layer("2-top-1", top_k=1, prototypes=2, capacity_factor=None),
    "2-top-1-capacity": _layer("2-top-1-capacity", top_k=1, prototypes=2, capacity_factor=1.0, gate="sigmoid"),
    "mixtral-of-2": mixtral(experts=2),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """``family``: of all families, or of ``LAYERS``.

    ``routing``: ``own``, as the model's weights say; ``skewed``, most tokens to two experts and the rest uneven; or
    ``same``, all tokens to the same experts at first and nothing to the others. ``inside``: among how many neighbours
    on a node rows go first, 0: in one step.
    """

    family: str
    mesh: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)
    routing: str = "own"
    inside: int = 0

    def __str__(self) -> str:
        words = [self.family, ",".join(f"{axis}={size}" for axis, size in self.mesh.items())]
        words += [f"{key}={value}" for key, value in self.options.items()]
        return "-".join(words + ([] if self.routing == "own" else [self.routing]))

    @property
    def model(self) -> Family:
        return LAYERS.get(self.family) or FAMILIES[self.family]

    @property
    def world(self) -> int:
        size = 1
        for ways in self.mesh.values():
            size *= ways
        return size


@dataclass(frozen=True, kw_only=True)
class Found:
    """``worst``: largest error against one device. ``kept``: numbers of experts' weights here, and of all of them.

    ``exchanged``: among how many neighbours on a node rows go first, 0: in one step; None: nowhere.
    """

    worst: float
    kept: tuple[int, int]
    split: dict[str, float]
    exchanged: int | None
    place: tuple[int, int]


def built(case: Case) -> nn.Module:
    torch.manual_seed(0)
    model = case.model.build()
    if case.routing != "own":
        routers = [p for n, p in model.named_parameters() if n.endswith(("gate.weight", "router.weight"))]
        assert routers
        with torch.no_grad():
            for weight in routers:
                weight.mul_(0 if case.routing == "same" else 1)
                if case.routing == "skewed":
                    weight[0].mul_(9)
                    weight[1] = -weight[0]
    return model


def trained(case: Case) -> Found:
    """Three steps; rank 0 compares losses, gradients, norm and parameters with one device, with stages every rank."""
    family = case.model
    model, batch = built(case), family.batch()
    staged = "pp" in case.mesh
    expected = alone(copy.deepcopy(model), batch, family) if dist.get_rank() == 0 or staged else None
    parallel = autopar.parallelize(model, batch, mesh=dict(case.mesh), profile=PROFILE, **case.options)
    losses, gradients, norm = stepped(parallel, batch, 1e9)
    state = parallel.full_state_dict()
    program = parallel._program
    experts = [p for n, p in parallel.named_parameters() if "experts." in n and p.dim() == 3]
    worst = 0.0
    if expected is not None:
        squares = sum(float(g.double().square().sum()) for g in expected.gradients.values())
        wanted = torch.tensor(squares**0.5, dtype=torch.float64)
        worst = compare({"norm": norm}, {"norm": wanted}, tol=family.tolerance, what="norm")
        parameters = {n: state[n] for n in expected.parameters}
        here = {n: g for n, g in expected.gradients.items() if n in gradients or not staged}
        pairs = {"losses": (losses, expected.losses), "gradients": (gradients, here),
                 "parameters": (parameters, expected.parameters)}  # fmt: skip
        for what, pair in pairs.items():
            worst = max(worst, compare(*pair, tol=family.tolerance, what=what))
    parts = (program.graph, *program.graph.blocks)
    found = [node.attr("inside", 0) for graph in parts for node in graph.nodes if node.attr("exchange")]
    return Found(
        worst=worst,
        kept=(sum(p.to_local().numel() for p in experts if isinstance(p, DTensor)), sum(p.numel() for p in experts)),
        split={axis: split_share(program, axis) for axis, size in program.mesh.axes if size > 1},
        exchanged=int(str(found[0])) if found else None,
        place=(parallel.data_parallel_rank, parallel.data_parallel_size),
    )

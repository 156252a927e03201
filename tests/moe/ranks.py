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
from tests.families.measure import PROFILE, alone
from tests.families.mixtures import mixtral
from tests.families.ranks import stepped
from tests.parity.split import split_share


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """``routing``: ``own``, as the model's weights say, or ``same``, all tokens to the same experts at first.

    ``few``: of the family, with two experts.
    """

    family: str
    mesh: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)
    routing: str = "own"
    few: bool = False

    def __str__(self) -> str:
        words = [self.family, ",".join(f"{axis}={size}" for axis, size in self.mesh.items())]
        words += [f"{key}={value}" for key, value in self.options.items()]
        words += ["few"] if self.few else []
        return "-".join(words + ([] if self.routing == "own" else [self.routing]))

    @property
    def model(self) -> Family:
        return mixtral(experts=2) if self.few else FAMILIES[self.family]

    @property
    def world(self) -> int:
        size = 1
        for ways in self.mesh.values():
            size *= ways
        return size


@dataclass(frozen=True, kw_only=True)
class Found:
    """``worst``: largest error against one device. ``kept``: numbers of experts' weights here, and of all of them."""

    worst: float
    kept: tuple[int, int]
    split: dict[str, float]
    exchanged: bool
    place: tuple[int, int]


def built(case: Case) -> nn.Module:
    torch.manual_seed(0)
    model = case.model.build()
    if case.routing == "same":
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("gate.weight", "router.weight")):
                    parameter.zero_()
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
    experts = [p for n, p in parallel.named_parameters() if ".experts." in n and p.dim() == 3]
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
    return Found(
        worst=worst,
        kept=(sum(p.to_local().numel() for p in experts if isinstance(p, DTensor)), sum(p.numel() for p in experts)),
        split={axis: split_share(program, axis) for axis, size in program.mesh.axes if size > 1},
        exchanged=any(node.attr("exchange") == "ep" for graph in parts for node in graph.nodes),
        place=(parallel.data_parallel_rank, parallel.data_parallel_size),
    )

"""What a process does with Switch Transformers whose routers compute in another type than their weights have."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import autopar
from autopar.runtime.parity import compare
from tests.families import FAMILIES
from tests.families.measure import PROFILE
from tests.families.ranks import stepped

FAMILY = FAMILIES["switch"]


def converting() -> nn.Module:
    """In float64 but for the classifiers of its routers, which its forward converts."""
    model = FAMILY.build()
    for module in model.modules():
        if type(module).__name__ == "SwitchTransformersTop1Router":
            module.classifier.float()
    return model


def trained() -> tuple[float, float]:
    """Gradients on two devices against one: the largest error of what is in float64, and of classifiers."""
    torch.manual_seed(0)
    model, batch = converting(), FAMILY.batch()
    alone: Any = copy.deepcopy(model)  # its first forward makes its classifiers parameters in float64
    alone.train()
    alone(**batch)
    alone(**batch).loss.backward()
    parallel = autopar.parallelize(model, batch, mesh={"dp": 2}, profile=PROFILE, num_microbatches=1)
    _, gradients, _ = stepped(parallel, batch, 1e9)
    if dist.get_rank():
        return 0.0, 0.0
    wanted = {name: p.grad for name, p in alone.named_parameters() if p.grad is not None}
    rounded = {name for name in wanted if "classifier" in name}
    assert rounded and {gradients[name].dtype for name in rounded} == {torch.float32}
    exact = compare(
        {n: g for n, g in gradients.items() if n not in rounded}, {n: g for n, g in wanted.items() if n not in rounded},
        tol=1e-9, what="gradients",
    )  # fmt: skip
    rough = compare(
        {n: gradients[n].double() for n in rounded}, {n: wanted[n] for n in rounded}, tol=1e-6, what="classifiers"
    )
    return exact, rough

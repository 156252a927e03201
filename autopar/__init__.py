"""autopar: an auto-parallel graph compiler for PyTorch.

``parallelize(model, example_inputs)`` finds the fastest way to train an unmodified model on the running
processes and returns it as a sharded module; ``plan`` finds it without any device.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autopar.annotations import replicate, split, stage
    from autopar.api import parallelize, plan
    from autopar.cost_model import Cluster, CostProfile
    from autopar.ir.plan import Plan
    from autopar.rules import register_rule
    from autopar.runtime.checkpoint import load, save
    from autopar.runtime.module import ParallelModule
    from autopar.verifying.verify import verify

__version__ = "0.1.0"
__all__ = [
    "Cluster", "CostProfile", "ParallelModule", "Plan", "errors", "load", "nn", "parallelize", "plan", "register_rule",
    "replicate", "save", "split", "stage", "verify",
]  # fmt: skip

# Imported on first use: the command line must not wait for torch.
_HOMES = {
    "Cluster": "autopar.cost_model",
    "CostProfile": "autopar.cost_model",
    "ParallelModule": "autopar.runtime.module",
    "Plan": "autopar.ir.plan",
    "load": "autopar.runtime.checkpoint",
    "parallelize": "autopar.api",
    "plan": "autopar.api",
    "register_rule": "autopar.rules",
    "replicate": "autopar.annotations",
    "save": "autopar.runtime.checkpoint",
    "split": "autopar.annotations",
    "stage": "autopar.annotations",
    "verify": "autopar.verifying.verify",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "nn"):
        return importlib.import_module(f"autopar.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'autopar' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

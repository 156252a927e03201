"""What is left of a model that became a parallel one."""

from __future__ import annotations

import gc
import weakref

import autopar
from tests.families.family import causal_batch
from tests.models import llama


def left() -> tuple[int, int]:
    """How many of its weights there still are once nobody has the model, and of how many; no chance collects any."""
    gc.collect()
    gc.disable()
    try:
        model = llama()
        weights = [weakref.ref(parameter) for parameter in model.parameters()]
        parallel = autopar.parallelize(model, causal_batch())
        del model
        found = sum(weight() is not None for weight in weights), len(weights)
        assert sum(1 for _ in parallel.parameters()) == len(weights)
    finally:
        gc.enable()
    return found

"""What a process of the tests of ZeRO levels does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

import autopar
from autopar.ir.program import Program
from autopar.runtime import assemble
from tests.state.networks import made
from tests.state.simulated import FREE


def gradients(root: int, block: int) -> Mapping[str, Tensor]:
    """Of two steps at {pp 2, dp 2}, added up, whatever levels the plan has."""
    usual: Any = assemble._holders

    def at_levels(program: Program, *given: Any, **how: Any) -> Any:
        zero = {name: block if name else root for name in (*program.zero, "")}
        return usual(replace(program, zero=zero), *given, **how)

    model, inputs = made("scaled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "_holders", at_levels)
        parallel = autopar.parallelize(model, inputs, mesh={"pp": 2, "dp": 2}, profile=FREE)
        for _ in range(2):
            parallel.train_step(*parallel.shard_inputs(inputs))
        return parallel.full_gradients()

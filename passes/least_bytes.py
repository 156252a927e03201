"""What a candidate's devices hold at least, whatever is placed how: trained parameters, gradients, optimizer state.

ZeRO 3 cuts all of it over every device. Where the level is lower, as in effect it is under torch's pipelines, only axes
that split parameters cut the copy that is computed with and the gradients that microbatches add to. That rules out most
pipelines of a large model before anything is laid out.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from autopar.cost_model import CostProfile, optimizer_state_bytes
from autopar.ir.types import TensorType
from autopar.passes.build import Model
from autopar.passes.candidate import DATA_AXES
from autopar.passes.outer import Candidate


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bytes of a whole parameter as stored (its gradient has as many), of its optimizer state, and as computed with.

    ``cast``: computing reads another type.
    """

    stored: int
    state: int
    used: int
    cast: bool


@dataclass(eq=False)
class LeastBytes:
    """Each is worked out once."""

    model: Model
    profile: CostProfile
    known: dict[tuple[int, int, int, bool], int] = field(default_factory=dict)

    @cached_property
    def _sizes(self) -> Counter[_Sizes]:
        """How many parameters of each size the loss depends on."""
        found = Counter[_Sizes]()
        for name in sorted(_used(self.model)):
            kept = self.model.parameters[name]
            if kept.trainable and not kept.buffer:
                state = optimizer_state_bytes(self.model.settings.optimizer, kept.shape, kept.dtype, self.profile)
                stored, used = (TensorType(dtype, kept.shape).nbytes for dtype in (kept.dtype, kept.compute_dtype))
                found[_Sizes(stored, state, used, kept.dtype != kept.compute_dtype)] += 1
        return found

    def of(self, candidate: Candidate) -> int:
        """Of the fullest device: the mean over places of a pipeline."""
        mesh, shape = candidate.mesh, candidate.shape
        devices = math.prod(size for _, size in mesh.axes)
        split = math.prod(size for axis, size in mesh.axes if axis not in DATA_AXES)
        level = 3 if self.model.settings.zero is None else self.model.settings.zero
        if shape is not None or candidate.uneven:
            level = min(level, 1)
        key = devices, split, level, candidate.count > 1
        if key not in self.known:
            self.known[key] = sum(times * _least(sizes, *key) for sizes, times in self._sizes.items())
        return self.known[key] // (1 if shape is None else shape.places)

    def fit(self, candidate: Candidate, memory_bytes: int) -> bool:
        """Whether so much memory is not too little for what the candidate holds at least."""
        return self.of(candidate) <= memory_bytes


def _least(sizes: _Sizes, devices: int, split: int, level: int, many: bool) -> int:
    """Of one parameter on each device that has a share: as ``storage.parameter_bytes`` counts, in the best of ways.

    ``split``: into how many parts what computing reads may be cut. ``many``: there is more than one microbatch.
    """
    once = (2 * sizes.stored + sizes.state + sizes.cast * sizes.used) // split  # nothing is the runtime's to cut
    if level == 0:
        return once
    added = sizes.stored if many and level == 1 else 0  # gradients of earlier microbatches, whole
    whole = added + (sizes.used if level < 3 else 0)
    cut = 2 * sizes.stored - added + sizes.state
    return min(once, whole // split + cut // devices)


def _used(model: Model) -> set[str]:
    """Parameters that the loss depends on: others have neither gradients nor optimizer state."""
    found: set[str] = set()
    for node in model.graph.nodes:
        if node.results[0].name in model.live:
            params = node.attr("params")
            rows = params if isinstance(params, tuple) else ()
            found.update(str(name) for row in rows if isinstance(row, tuple) for name in row)
            if node.target == "param":
                found.add(str(node.attr("fqn")))
    return found

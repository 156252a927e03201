"""How many microbatches a stage holds at once, counted as they come and go."""

from __future__ import annotations

import torch
from torch.distributed.pipelining import PipelineStage

from tests.pipelines.processes import MODELS, Case, parallel


def most_held(case: Case) -> tuple[int, int]:
    """(microbatches, most that were forward and not yet backward) on this rank's only stage in a step."""
    torch.manual_seed(0)
    family = MODELS[case.family]
    model = parallel(case, family.build())
    held, most = 0, 0
    forward, backward = PipelineStage.forward_one_chunk, PipelineStage.backward_one_chunk

    def counted_forward(self: PipelineStage, *args: object, **kwargs: object) -> object:
        nonlocal held, most
        held += 1
        most = max(most, held)
        return forward(self, *args, **kwargs)  # type: ignore[arg-type]

    def counted_backward(self: PipelineStage, *args: object, **kwargs: object) -> object:
        nonlocal held
        made = backward(self, *args, **kwargs)  # type: ignore[arg-type]
        held -= 1
        return made

    PipelineStage.forward_one_chunk = counted_forward  # type: ignore[assignment,method-assign]
    PipelineStage.backward_one_chunk = counted_backward  # type: ignore[assignment,method-assign]
    try:
        model.train_step(**model.shard_inputs(family.batch()))
    finally:
        PipelineStage.forward_one_chunk, PipelineStage.backward_one_chunk = forward, backward  # type: ignore[method-assign]
    assert held == 0
    return model.plan.num_microbatches, most

"""How many microbatches a stage holds at once, and how much of what it received, counted as they come and go."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
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


def most_received(case: Case) -> tuple[int, int]:
    """The most messages that this rank's only stage had received, or was about to, and still held: in a step, and in
    an evaluation."""
    torch.manual_seed(0)
    family = MODELS[case.family]
    model = parallel(case, family.build())
    given = model.shard_inputs(family.batch())
    return _most_received(lambda: model.train_step(**given)), _most_received(lambda: model.eval_step(**given))


def _most_received(run: Callable[[], object]) -> int:
    received: list[weakref.ref[Tensor]] = []
    most = 0

    def counted(original: Callable[..., list[dist.P2POp]]) -> Callable[..., list[dist.P2POp]]:
        def begun(*args: object) -> list[dist.P2POp]:
            nonlocal most
            made = original(*args)
            received.extend(weakref.ref(op.tensor) for op in made[:1])  # of the values that cross together
            most = max(most, sum(one() is not None for one in received))
            return made

        return begun

    names = ("get_fwd_recv_ops", "get_bwd_recv_ops")
    with ExitStack() as patched:
        for name in names:
            patched.enter_context(mock.patch.object(PipelineStage, name, counted(getattr(PipelineStage, name))))
        run()
    return most

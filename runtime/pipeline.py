"""A pipeline on this process: stages as ``PipelineStage``s, run by a schedule of ``torch.distributed.pipelining``.

A stage is its root holder, so that the schedule finds FSDP2 there. It is called once a microbatch, in order, with what
the stage before sent; all else it takes from the inputs of the step, which every rank has. Gradients are sums: the
loss is divided by its global denominator already (``scale_grads=False``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble

from autopar.ir.pipeline import LOOPED, Pipeline, Stage
from autopar.ir.program import RNG_INPUT
from autopar.runtime.boundary import arriving, leaving, received_like, sent_like
from autopar.runtime.devices import Here
from autopar.runtime.dtypes import TORCH_DTYPES
from autopar.runtime.inputs import Input, graph_inputs
from autopar.runtime.random_words import at_microbatch
from autopar.runtime.runnable import Parts
from autopar.runtime.torch_private import SettledStage

SINGLE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
MULTI = {"interleaved": ScheduleInterleaved1F1B, "zero_bubble": ScheduleInterleavedZeroBubble}


class StageRun:
    """What a stage's root holder runs: one microbatch after the other."""

    def __init__(self, stage: Stage, parts: Parts) -> None:
        self.stage, self.parts = stage, parts
        self.runnable = parts.training
        self.inputs: list[Input] = [
            entry for entry in graph_inputs(self.runnable.graph) if entry.name not in stage.receives
        ]
        self.types = [stage.program.graph.values()[name].type.dtype for name in stage.receives]
        self.given: Mapping[str, Tensor] = {}
        self.rng = torch.empty(0, dtype=torch.int64)
        self.next = 0

    def begin(self, given: Mapping[str, Tensor], rng: Tensor) -> None:
        """A new step: the inputs of this rank's whole part of the batch."""
        self.given, self.rng, self.next = given, rng, 0
        self.parts.top.function = self.run  # set each time: the programs of both modes share their holders

    def run(self, *received: Tensor) -> Tensor | tuple[Tensor, ...]:
        index, self.next = self.next, self.next + 1
        known = {
            entry.name: entry.microbatch(self.given[entry.name], index) for entry in self.inputs
            if entry.name != RNG_INPUT
        }  # fmt: skip
        known.update(zip(self.stage.receives, arriving(received, self.types), strict=False))
        self.runnable.rng = at_microbatch(self.rng, index)
        self.runnable.updates.begin()
        results = self.runnable.run(*(known[name] for name in self.runnable.inputs if name != RNG_INPUT))
        self.runnable.updates.finish()
        return leaving(results) if self.stage.sends else torch.stack(list(results))


class Pipelined:
    """The stages of this rank and their schedule. Making one is a collective of the pipeline's ranks."""

    def __init__(
        self, pipeline: Pipeline, parts: Mapping[int, Parts], here: Here, group: dist.ProcessGroup
    ) -> None:
        self._pipeline, self._here, self._group = pipeline, here, group
        self._microbatches = pipeline.stages[0].program.microbatches
        self._runs = {index: StageRun(pipeline.stages[index], made) for index, made in parts.items()}
        stages = [self._stage(index, run) for index, run in self._runs.items()]
        build: Any = (MULTI if pipeline.schedule in LOOPED else SINGLE)[pipeline.schedule]
        self._schedule = build(
            stages if pipeline.schedule in LOOPED else stages[0], self._microbatches, loss_fn=self._loss,
            scale_grads=False,
        )  # fmt: skip
        self._scale: Callable[[Tensor], Tensor] = _as_it_is
        self._seen: list[Tensor] = []

    def step(
        self, given: Mapping[str, Tensor], rng: Tensor, *, training: bool, scale: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Forward, and backward of the scaled loss if ``training``; the loss on every rank of the pipeline."""
        self._scale, self._seen = scale, []
        for run in self._runs.values():
            run.begin(given, rng)
        last = len(self._pipeline.stages) - 1
        arguments: dict[str, Any] = {"losses": []}
        if last in self._runs:
            arguments["target"] = torch.arange(self._microbatches)
        first = (torch.arange(self._microbatches),) if 0 in self._runs else ()
        if training:
            self._schedule.step(*first, return_outputs=False, **arguments)
        else:
            self._schedule.eval(*first, **arguments)
        total = torch.stack(self._seen).sum() if self._seen else self._empty_loss()
        source = dist.get_global_rank(self._group, self._pipeline.place(last))
        dist.broadcast(total, src=source, group=self._group)
        return total

    def _stage(self, index: int, run: StageRun) -> SettledStage:
        stage = run.stage
        received = received_like(stage) if index else (torch.zeros(1, dtype=torch.int64, device="meta"),)
        return SettledStage(
            run.parts.top, index, len(self._pipeline.stages), self._here.device, input_args=received,
            output_args=sent_like(stage), group=self._group,
        )  # fmt: skip

    def _empty_loss(self) -> Tensor:
        last = self._pipeline.stages[-1].program
        assert last.loss is not None
        dtype = last.graph.values()[last.loss].type.dtype
        return torch.zeros((), dtype=TORCH_DTYPES[dtype], device=self._here.device)

    def _loss(self, output: Tensor, _: Tensor) -> Tensor:
        self._seen.append(output.sum().detach())
        return self._scale(output.sum())


def _as_it_is(loss: Tensor) -> Tensor:
    return loss

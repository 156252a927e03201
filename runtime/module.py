"""``ParallelModule``: a program on this process, as a module that a user trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from autopar.ir.errors import IRError, UsageError
from autopar.ir.layout import Layout, Partial, R, Shard
from autopar.ir.plan import Plan
from autopar.ir.program import MICROBATCH_AXIS, RNG_INPUT, Program
from autopar.runtime import inputs as entries
from autopar.runtime import local
from autopar.runtime.assemble import assemble
from autopar.runtime.devices import here
from autopar.runtime.dtensors import as_dtensor
from autopar.runtime.holders import set_gradient_sync
from autopar.runtime.norm import clip_, grad_norm
from autopar.runtime.parameters import Names, Whole
from autopar.runtime.random_words import at_microbatch, rng_state

# Rebuilds the model's output from the values of ``graph.outputs``.
Restore = Callable[[Sequence[Any]], Any]


class ParallelModule(nn.Module):
    """Parameters and buffers stand under the original names; values and gradients are DTensors.

    ``whole`` gives the whole tensor of each parameter, one at a time; every rank calls it in the same
    order. ``plan`` is what the program was lowered from. ``restore`` rebuilds the model's own output type in
    ``forward``; without it, a tuple. Making one
    is a collective of all ranks. ``training``: the mode of the model that the program was made from.

    Random numbers are a function of ``rng_seed``, which must be equal on all ranks, and ``rng_step``, which
    every ``train_step`` and ``forward`` raises by one. Neither is part of the state dict: who continues a run
    sets ``rng_step`` to what it was.
    """

    def __init__(
        self,
        program: Program,
        device_mesh: DeviceMesh,
        whole: Whole,
        *,
        names: Names | None = None,
        plan: Plan | None = None,
        restore: Restore | None = None,
        compile: bool = False,
        rng_seed: int = 0,
        training: bool = True,
    ) -> None:
        super().__init__()
        self.rng_seed = rng_seed
        self.rng_step = 0
        self._made_for = training
        self._plan = plan
        self._program = program
        self._here = here(program.mesh, device_mesh)
        self._inputs = entries.inputs_of(program)
        self._restore = restore
        # Not a child: its parameters are those of the skeleton, and would be listed twice.
        self._parts = [assemble(program, self._here, whole, names or Names(), compile=compile)]
        skeleton = self._parts[0].skeleton
        self._modules.update(skeleton._modules)
        self._parameters.update(skeleton._parameters)
        self._buffers.update(skeleton._buffers)
        self._non_persistent_buffers_set.update(skeleton._non_persistent_buffers_set)
        self.train(training)

    @property
    def plan(self) -> Plan:
        """The plan that this module runs. Raises UsageError if it was made from a bare program."""
        if self._plan is None:
            raise UsageError("this module was made from a program, not from a plan")
        return self._plan

    def train_step(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """Forward and backward on this rank's part of the batch.

        Accumulates into ``.grad`` and returns the loss over the global batch, equal on every rank.
        Raises UsageError for inputs that the plan was not made for, before any collective.
        """
        if self._program.loss is None:
            raise UsageError("the model returns no loss: give parallelize a loss_fn")
        given, rng = self._given(args, kwargs)
        total: Tensor | None = None
        last = self._program.microbatches - 1
        for index in range(last + 1):
            set_gradient_sync(self._parts[0].top, index == last)
            (loss,) = self._run(given, index, rng, training=True)
            if loss.requires_grad:
                loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        """The model's output: the loss as on one device, all else as DTensors in the plan's layout."""
        given, rng = self._given(args, kwargs)
        set_gradient_sync(self._parts[0].top, True)
        runs = [self._run(given, index, rng, training=False) for index in range(self._program.microbatches)]
        values = self._program.graph.values()
        outputs: list[Any] = []
        for at, name in enumerate(self._program.graph.outputs):
            value = values[name]
            assert value.layout is not None
            joined = _join([run[at] for run in runs], value.layout, is_loss=name == self._program.loss)
            if name == self._program.loss:
                outputs.append(joined)
            else:
                layout = _without_microbatches(self._program, value.layout)
                outputs.append(as_dtensor(joined, layout, value.type.shape, self._here))
        return tuple(outputs) if self._restore is None else self._restore(outputs)

    def shard_inputs(
        self, batch: Tensor | Sequence[Tensor] | Mapping[str, Tensor]
    ) -> Tensor | tuple[Tensor, ...] | dict[str, Tensor]:
        """This rank's part of a global batch, in the form given: one tensor, a tuple, or a dict."""
        args = (batch,) if isinstance(batch, Tensor) else () if isinstance(batch, Mapping) else tuple(batch)
        kwargs = dict(batch) if isinstance(batch, Mapping) else {}
        given = entries.by_name(self._inputs, args, kwargs)
        entries.check(self._inputs, given, whole=True)
        parts = entries.shard(self._inputs, given, self._here.coordinate)
        if isinstance(batch, Mapping):
            return {name: parts[name] for name in batch}
        return parts[next(iter(parts))] if isinstance(batch, Tensor) else tuple(parts.values())

    @property
    def data_parallel_rank(self) -> int:
        """Which part of the batch this rank takes."""
        rank = 0
        for axis in self._program.data_axes:
            rank = rank * self._here.size(axis) + self._here.coordinate[axis]
        return rank

    @property
    def data_parallel_size(self) -> int:
        """Into how many parts the batch is cut."""
        size = 1
        for axis in self._program.data_axes:
            size *= self._here.size(axis)
        return size

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the gradients down to a global 2-norm of ``max_norm``; returns the norm before."""
        norm = grad_norm(self.parameters(), self._here.device)
        clip_(self.parameters(), norm, max_norm)
        return norm

    def full_state_dict(self) -> dict[str, Tensor]:
        """Whole tensors under the original names, on every rank. A collective of all ranks."""
        found: dict[str, Tensor] = {}
        for name, tensor in self.state_dict().items():
            part = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            found[name] = part.detach().clone()
        return found

    def _given(self, args: Sequence[Tensor], kwargs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Inputs of the main graph by name, and the state of the random numbers of a new step."""
        given = entries.by_name(self._inputs, args, kwargs)
        entries.check(self._inputs, given, whole=False)
        if self.training != self._made_for and entries.draws(self._program):
            made, now = ("training", "eval()") if self._made_for else ("evaluation", "train()")
            raise UsageError(
                f"the program was made in {made} mode, draws random numbers (dropout) in it, and knows no other; undo "
                f"{now}, or run the original model on full_state_dict()"
            )
        given = {name: tensor.to(self._here.device) for name, tensor in given.items()}
        rng = rng_state(self.rng_seed, self.rng_step)
        self.rng_step += 1
        return {**given, **self._parts[0].before(given, rng)}, rng

    def _run(self, given: dict[str, Tensor], index: int, rng: Tensor, *, training: bool) -> tuple[Tensor, ...]:
        parts = self._parts[0]
        graph = parts.training if training else parts.forward
        part = {
            entry.name: entry.microbatch(given[entry.name], index)
            for entry in entries.graph_inputs(graph.graph) if entry.name != RNG_INPUT
        }  # fmt: skip
        return graph(part, at_microbatch(rng, index))


def _without_microbatches(program: Program, layout: Layout) -> Layout:
    return Layout.of(
        program.mesh,
        {a: p for a, p in zip(layout.mesh.names, layout.placements, strict=True) if a != MICROBATCH_AXIS},
    )


def _join(runs: list[Tensor], layout: Layout, *, is_loss: bool) -> Tensor:
    """One value of the whole batch from those of its microbatches."""
    if len(runs) == 1:
        return runs[0]
    place = layout[MICROBATCH_AXIS]
    if is_loss or place == Partial():
        return torch.stack(runs).sum(dim=0)
    if isinstance(place, Shard):
        return local.place(torch.stack(runs), place.dim, layout.local_outer(place.dim, place.outer))
    if place == R:
        return runs[0]
    raise IRError(f"no value laid out {layout} can be joined from microbatches")

"""``ParallelModule``: a program on this process, as a module that a user trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from autopar.ir.errors import IRError, UnsupportedError, UsageError
from autopar.ir.layout import Layout, Partial, R, Shard
from autopar.ir.padding import Padding
from autopar.ir.pipeline import Pipeline
from autopar.ir.plan import Plan
from autopar.ir.program import MICROBATCH_AXIS, RNG_INPUT, Program
from autopar.runtime import inputs as entries
from autopar.runtime import local, torch_private
from autopar.runtime.assemble import assemble, skeleton
from autopar.runtime.compiled import Compile
from autopar.runtime.devices import here
from autopar.runtime.dtensors import as_dtensor
from autopar.runtime.holders import set_gradient_sync
from autopar.runtime.hooks import refuse_hooks_on_parts
from autopar.runtime.modes import Made, Modes, Restore, Running, grad_free
from autopar.runtime.norm import clip_, grad_norm
from autopar.runtime.origins import Origins, as_named
from autopar.runtime.padding import padded
from autopar.runtime.parameters import Names, Stored, Whole
from autopar.runtime.profiling import StepProfile, profile
from autopar.runtime.random_words import at_microbatch, rng_state
from autopar.runtime.scaling import LossScale
from autopar.runtime.shares import Share
from autopar.runtime.stages import Stages
from autopar.runtime.unanimous import Unanimous
from autopar.runtime.whole_state import WholeState

Batch: TypeAlias = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
Parts: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
NOT_PLANNED = Padding(refused="this module was made from a program, not from a model")


class ParallelModule(WholeState):
    """Parameters and buffers stand under the original names; values and gradients are DTensors.

    ``whole`` gives the whole tensor of each parameter, one at a time; every rank calls it in the same
    order. ``plan`` is what the program was lowered from. ``restore`` rebuilds the model's own output type in
    ``forward``; without it, a tuple. ``calling`` finds the inputs in a call of the model; without it a call
    has the inputs themselves. ``padding``: how a smaller batch is filled up. ``training``: the mode of the model
    that the program was made from; ``other_mode`` makes that of the other when it is first asked for. ``compile``:
    compile each distinct block once (``compiled.py``). ``origins``: what its tensors are made of in published files.
    ``pipeline``: the program cut into stages, for a device mesh
    with the axis ``pp``; then parameters are those of this rank's stages. Making one is a collective of all ranks.

    Random numbers are a function of ``rng_seed``, which must be equal on all ranks, and ``rng_step``, which
    every ``train_step``, and every ``forward`` in training mode, raises by one. Neither is part of the state dict:
    who continues a run sets ``rng_step`` to what it was.
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
        calling: entries.Calling | None = None,
        padding: Padding = NOT_PLANNED,
        compile: Compile = False,
        rng_seed: int = 0,
        training: bool = True,
        pipeline: Pipeline | None = None,
        other_mode: Callable[[bool], Made] | None = None,
        origins: Origins = as_named,
    ) -> None:
        super().__init__()
        self._origins = origins
        self.rng_seed = rng_seed
        self.rng_step = 0
        self._plan = plan
        self._compiled = compile
        self._program = program
        torch_private.forget_meshes()  # a new world may have taken the place of one that has had a module
        self._here = here(program.mesh, device_mesh)
        self._here.divide(program)
        lowered = plan is not None and plan.mixed_precision is not None
        self._share = Share.of(program, self._here.coordinate, self._here.groups)
        self._inputs = entries.inputs_of(program, lowered=lowered, share=self._share)
        self._calling = entries.Plain(tuple(self._inputs)) if calling is None else calling
        self._unanimous = Unanimous()
        self._names = names or Names()
        self._evaluations = 0
        self._checked = set[bool]()  # modes in which nothing was hooked to
        self._gathered = False  # by a forward whose backward may never come
        self.loss_scale = LossScale.of(program, self._here.device)
        self._padding = padding
        # Not children: their parameters are those of the skeleton, and would be listed twice.
        self._stages: Stages | None = None
        if pipeline is None:
            self._parts = [assemble(program, self._here, Stored(whole, self._here), compile=compile)]
            tensors = self._parts[0].tensors
        else:
            self._stages = Stages(program, pipeline, self._here, whole, self._names, compile=compile)
            self._parts, tensors = list(self._stages.parts.values()), self._stages.tensors
        staged = None if self._stages is None else self._stages.first
        first = Running(program=program, parts=self._parts[0], restore=restore, staged=staged)
        self._modes = Modes(training, first, self._here, other_mode, stages=self._stages)
        made = skeleton(tensors, self._names)
        self._modules.update(made._modules)
        self._parameters.update(made._parameters)
        self._buffers.update(made._buffers)
        self._non_persistent_buffers_set.update(made._non_persistent_buffers_set)
        self.train(training)

    @property
    def plan(self) -> Plan:
        """The plan that this module runs. Raises UsageError if it was made from a bare program."""
        if self._plan is None:
            raise UsageError("this module was made from a program, not from a plan")
        return self._plan

    def train_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward on this rank's part of the batch.

        Accumulates into ``.grad`` and returns the loss over the global batch, equal on every rank. Where
        ``loss_scale`` is active gradients are scaled within, and a step that overflows adds nothing (``scaling.py``).
        Raises UsageError for inputs that the plan was not made for: on every rank if they are wrong on one, and
        before anything has changed. In evaluation mode the gradients are those of the model as it evaluates.
        """
        self._has_loss()
        now, given, rng = self._given("train_step", args, kwargs, training=self.training, counts=True)
        if now.forward_only:
            raise UsageError(f"train_step after eval() or train(): {now.forward_only}; plan the model in this mode")
        self.loss_scale.begin(self.parameters())
        if self._stages is not None and now.staged is not None:
            total = self._stages.step(now.staged, given, rng, training=True, scale=self.loss_scale.scaled)
        else:
            total = self._accumulate(now, given, rng)
        self.loss_scale.finish(self.parameters())
        return total

    def _accumulate(self, now: Running, given: dict[str, Tensor], rng: Tensor) -> Tensor:
        total: Tensor | None = None
        last = self._share.count - 1
        with self._parts[0].sums.once(), self._parts[0].leaves.step():
            for index in range(last + 1):
                set_gradient_sync(self._parts[0].top, index == last)
                (loss,) = self._run(now, given, index, rng, loss_only=True)
                if loss.requires_grad:
                    self.loss_scale.scaled(loss).backward()
                total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return self._share.summed(total)

    @torch.no_grad()
    def eval_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss over the global batch as the model evaluates it, equal on every rank; in any mode.

        Forward only: no gradients, and training draws afterwards what it would have drawn. Raises as
        ``train_step`` does.
        """
        self._has_loss()
        now, given, rng = self._given("eval_step", args, kwargs, training=False, counts=False)
        if self._stages is not None and now.staged is not None:
            total = self._stages.step(now.staged, given, rng, training=False)
        else:
            runs = [self._run(now, given, index, rng, loss_only=True)[0] for index in range(self._share.count)]
            total = self._share.summed(torch.stack(runs).sum(dim=0))
        self._release()
        return total

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output: the loss as on one device, all else as DTensors in the plan's layout.

        In the mode that the module is in. Raises UsageError as ``train_step`` does, and for a plan with pipeline
        stages or unequal shares of the batch; UnsupportedError where microbatches cannot tell an output.
        """
        if self._stages is not None or self._share.unequal:
            what = "unequal shares of the batch" if self._stages is None else "pipeline stages"
            raise UsageError(f"a plan with {what} has no plain forward: use train_step or eval_step")
        now, given, rng = self._given("forward", args, kwargs, training=self.training, counts=self.training)
        with grad_free(now):
            return self._forward(now, given, rng)

    def _forward(self, now: Running, given: dict[str, Tensor], rng: Tensor) -> Any:
        program = now.program
        set_gradient_sync(self._parts[0].top, True)
        runs = [self._run(now, given, index, rng, loss_only=False) for index in range(program.microbatches)]
        self._gathered = torch.is_grad_enabled()
        if not self._gathered:
            self._release()
        values = program.graph.values()
        outputs: list[Any] = []
        for at, name in enumerate(program.graph.outputs):
            value = values[name]
            assert value.layout is not None
            joined = _join([run[at] for run in runs], value.layout, is_loss=name == program.loss)
            if name == program.loss:
                outputs.append(joined)
            else:
                layout = _without_microbatches(program, value.layout)
                outputs.append(as_dtensor(joined, layout, value.type.shape, self._here))
        return tuple(outputs) if now.restore is None else now.restore(outputs)

    def profile(self, steps: int, *args: Any, **kwargs: Any) -> StepProfile:
        """Measure ``steps`` steps on this rank's part of a batch, given as ``train_step`` takes it.

        Returns time and memory beside the plan's figures; parameters, gradients, buffers and ``rng_step`` are
        afterwards what they were. A collective of all ranks. Raises UsageError as ``train_step`` does, and for
        fewer than 1 step.
        """
        at, scale = self.rng_step, self.loss_scale.state_dict()
        try:
            return profile(
                self, lambda: self.train_step(*args, **kwargs), steps, self._plan, compiled=bool(self._compiled)
            )
        finally:
            self.rng_step = at
            self.loss_scale.load_state_dict(scale)

    def shard_inputs(self, batch: Any, *, pad: bool = False) -> Any:
        """This rank's part of a global batch, in the form given: one tensor, a tuple, or a dict.

        What is no tensor stays as it is. With ``pad`` the batch may have fewer rows than planned: rows that count
        for nothing are added, so that loss and gradients are those of the rows given. Raises UsageError where
        that is not so, with the reason.
        """
        args, kwargs = self._calling.of_batch(batch)
        given = self._calling.flatten(args, kwargs)
        if pad:
            given = padded(self._inputs, given, self._padding, whole=True)
        entries.check(self._inputs, given, whole=True)
        return self._like(batch, entries.shard(self._inputs, given, self._here.coordinate))

    def pad_inputs(self, batch: Any) -> Any:
        """A rank's own part of a batch, filled up to the planned number of rows as ``shard_inputs`` does.

        For data that is read in parts: ranks may have different numbers of rows, each at least one.
        """
        args, kwargs = self._calling.of_batch(batch)
        given = padded(self._inputs, self._calling.flatten(args, kwargs), self._padding, whole=False)
        entries.check(self._inputs, given, whole=False)
        return self._like(batch, given)

    @property
    def data_parallel_rank(self) -> int:
        """Which part of the batch this rank takes."""
        rank = 0
        for axis in self._program.data_axes:
            rank = rank * self._here.size(axis) + self._here.coordinate[axis]
        return rank

    @property
    def local_batch_size(self) -> int:
        """Rows of the batch that this rank takes: ranks may take unequal shares, in order of ``data_parallel_rank``.

        All rows where no input has a batch.
        """
        given = list(self._inputs.values())
        dims = [(entry, entry.split_dim(axis)) for axis in self._program.data_axes for entry in given]
        cut = [entry.local_shape[dim] for entry, dim in dims if dim is not None]
        return next(iter([*cut, *(entry.local_shape[0] for entry in given if entry.local_shape)]), 0)

    @property
    def data_parallel_size(self) -> int:
        """Into how many parts the batch is cut, equal ones unless the plan has ``shares``."""
        size = 1
        for axis in self._program.data_axes:
            size *= self._here.size(axis)
        return size

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the gradients down to a global 2-norm of ``max_norm``; returns the norm before."""
        if self._stages is None:
            norm = grad_norm(self.parameters(), self._here.device)
        else:
            norm = self._stages.grad_norm(self.named_parameters())
        clip_(self.parameters(), norm, max_norm)
        return norm

    def _like(self, batch: Any, parts: dict[str, Tensor]) -> Any:
        """The batch in the form it was given, with other tensors."""
        args, kwargs = self._calling.of_batch(batch)
        args, kwargs = self._calling.refill(args, kwargs, parts)
        if isinstance(batch, Mapping):
            return kwargs
        return args[0] if isinstance(batch, Tensor) else (*args, *kwargs.values())

    def _has_loss(self) -> None:
        if self._program.loss is None:
            raise UsageError("the model returns no loss: give parallelize a loss_fn")

    def _given(
        self, call: str, args: Sequence[Any], kwargs: dict[str, Any], *, training: bool, counts: bool
    ) -> tuple[Running, dict[str, Tensor], Tensor]:
        """The program of the mode, its inputs by name, and the random numbers of a new step.

        What does not count as a step draws from a sequence of its own.
        """

        def checked() -> dict[str, Tensor]:
            if training not in self._checked:  # hooks are registered before the first step
                refuse_hooks_on_parts(self)
                self._checked.add(training)
            given = self._calling.flatten(args, kwargs)
            entries.check(self._inputs, given, whole=False)
            self._modes.prepare(training)
            return given

        given = self._unanimous.run(checked, f"{call} in {'training' if training else 'evaluation'} mode")
        now = self._modes.running(training)  # a collective, once no rank has failed
        for why in now.program.withheld.values() if call == "forward" else ():
            raise UnsupportedError(f"this plan has train_step and eval_step, but no plain forward: {why}")
        if self._gathered:
            self._release()
        given = {name: entry.cast(given[name]).to(self._here.device) for name, entry in self._inputs.items()}
        rng = rng_state(self.rng_seed, self.rng_step if counts else -1 - self._evaluations)
        self.rng_step += counts
        self._evaluations += not counts
        for parts in now.every:
            given = {**given, **parts.before(entries.evened(now.program, given, self._share), rng)}
        return now, given, rng

    def _run(
        self, now: Running, given: dict[str, Tensor], index: int, rng: Tensor, *, loss_only: bool
    ) -> tuple[Tensor, ...]:
        graph = now.parts.training if loss_only else now.parts.forward
        part = {
            entry.name: entry.microbatch(given[entry.name], index, self._share.count)
            for entry in entries.graph_inputs(graph.graph) if entry.name != RNG_INPUT
        }  # fmt: skip
        return graph(part, at_microbatch(rng, self._share.ahead + index))


def _like(batch: Batch, found: Mapping[str, Tensor]) -> Parts:
    """Tensors by name in the form of ``batch``."""
    if isinstance(batch, Mapping):
        return {name: found[name] for name in batch}
    return next(iter(found.values())) if isinstance(batch, Tensor) else tuple(found.values())


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

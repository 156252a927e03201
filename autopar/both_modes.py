"""The program of a plan in the model's other mode, made on demand from the structure of the model alone."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autopar.arguments import Arguments
from autopar.compiling import Readied, ready
from autopar.cost_model import axis_groups
from autopar.finding import marks_of, mesh_of, shared
from autopar.ir.errors import AutoparError, UnsupportedError, UsageError
from autopar.ir.pipeline import Pipeline, Stage
from autopar.ir.plan import Plan
from autopar.ir.program import MICROBATCH_AXIS, Program
from autopar.ir.text import print_graph
from autopar.passes.assignment import Assignment
from autopar.passes.candidate import with_time
from autopar.passes.conversions import Conversions
from autopar.passes.lower import lower
from autopar.passes.microbatches import refuse_writes
from autopar.passes.other_mode import Planned, in_other_mode
from autopar.passes.other_stages import cut_alike
from autopar.passes.pricing import Pricing
from autopar.passes.randomness import refuse_random
from autopar.passes.trace import Structure
from autopar.runtime.modes import Made

TRAINING = {True: "training", False: "evaluation"}


class OtherMode:
    """Holds what a trace needs of the model, and no weight of it: modules, constants, shapes.

    ``plan``: what ``assignment`` and ``program`` are of.
    Called with a mode it traces the model in it, takes over the plan's choices and lowers them.
    """

    def __init__(
        self, model: nn.Module, example_inputs: Any, arguments: Arguments, readied: Readied, assignment: Assignment,
        program: Program, plan: Plan,
    ) -> None:  # fmt: skip
        self._arguments = arguments
        self._planned = Planned(model=readied.model, assignment=assignment, program=program)
        self._plan = plan
        self._inputs = _without_data(example_inputs)
        self._structure: nn.Module | None = None
        self._problem = ""
        try:
            self._structure = structure(model)
        except Exception as error:  # noqa: BLE001 — a user's module may refuse to be copied in any way
            self._problem = f"{type(error).__name__}: {error}"

    def __call__(self, training: bool) -> Made:
        """Raises UsageError where the model cannot be had in that mode, and what tracing raises."""
        mode = TRAINING[training]
        if self._structure is None:
            raise UsageError(
                f"the model cannot be copied ({self._problem}), so its program in {mode} mode cannot be made; give it "
                "a __deepcopy__, or run the original model on full_state_dict()"
            )
        try:
            readied, program = self._program(training)
            stages: tuple[Stage, ...] = ()
            if self._plan.schedule is not None:
                readied, program, stages = self._in_stages(training, readied, program)
        except AutoparError as error:
            error.add_note(f"while the program of the plan was made in {mode} mode")
            raise
        traced = readied.traced
        graphs = [program.graph, *([program.prologue] if program.prologue else [])]
        pipeline = None
        if self._plan.schedule is not None:
            pipeline = Pipeline(mesh=mesh_of(self._plan), schedule=self._plan.schedule, stages=stages)
            graphs += [stage.program.graph for stage in stages]
        return Made(
            program=program, constants=traced.constants, restore=traced.out_spec.unflatten,
            text="\n".join(print_graph(graph) for graph in graphs), pipeline=pipeline,
        )  # fmt: skip

    def _program(self, training: bool, **how: bool) -> tuple[Readied, Program]:
        """The model in that mode, and its program; ``how`` is handed to ``ready``."""
        assert self._structure is not None
        readied = ready(self._structure.train(training), self._inputs, self._arguments, **how)
        if dist.is_initialized() and dist.get_world_size() > 1:
            refuse_random(readied.model.graph)
        return readied, self._lowered(readied)

    def _in_stages(
        self, training: bool, readied: Readied, program: Program
    ) -> tuple[Readied, Program, tuple[Stage, ...]]:
        """The program with the plan's stages; without calls of blocks where a stage would begin inside of one."""
        planned, marks = self._planned.program, marks_of(self._plan)
        try:
            return readied, program, cut_alike(planned, marks, program, readied.traced.constants)
        except UnsupportedError as error:
            problem = error
        if program.graph.blocks:
            readied, program = self._program(training, folded=False)
            try:
                return readied, program, cut_alike(planned, marks, program, readied.traced.constants)
            except UnsupportedError as error:
                problem = error
        raise UsageError(
            f"the model computes something else in {TRAINING[training]} mode, which the plan's pipeline stages cannot: "
            f"{problem}; run the original model on full_state_dict(), or a plan without pp"
        )

    def _lowered(self, readied: Readied) -> Program:
        first = self._planned.program
        if first.microbatches > 1:
            refuse_writes(readied.model.graph, first.microbatches)
        mesh = with_time(first.mesh, first.microbatches)
        pricing = Pricing(
            mesh=mesh, cluster=self._arguments.cluster, profile=self._arguments.profile,
            groups=axis_groups(mesh_of(self._plan).axes, self._arguments.cluster), uneven=bool(self._plan.shares),
        )  # fmt: skip
        assert (MICROBATCH_AXIS in mesh.names) == (first.microbatches > 1)
        conversions = Conversions(pricing)
        assignment = in_other_mode(self._planned, readied.model, conversions)
        return shared(lower(readied.model, assignment, conversions, first.microbatches), self._plan)


def structure(model: nn.Module) -> nn.Module:
    """A copy of the model with its parameters and buffers on meta: nothing of it is kept alive.

    Tensors that are neither are constants of the trace, and shared.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor):
                memo[id(value)] = value
    for tensor in (*model.parameters(), *model.buffers()):
        memo[id(tensor)] = _on_meta(tensor)
    return copy.deepcopy(model, memo)


def _on_meta(tensor: Tensor) -> Tensor:
    made = torch.empty_like(tensor, device="meta").detach()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def _without_data(example_inputs: Any) -> Any:
    """The example inputs on meta: a trace looks at shapes and element types only."""
    tensors, nested = Structure.of(example_inputs if isinstance(example_inputs, Tensor) else _plain(example_inputs))
    return nested.unflatten(torch.empty_like(tensor, device="meta") for tensor in tensors)


def _plain(example_inputs: Any) -> Any:
    """A mapping of any class, such as transformers' BatchEncoding, as a dict, which a trace makes of it too."""
    return dict(example_inputs) if hasattr(example_inputs, "keys") else example_inputs

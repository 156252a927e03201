"""The pipeline stages of this rank as one whole: their tensors, gradients of tied parameters, norm and state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autopar.ir.layout import Layout
from autopar.ir.pipeline import PIPELINE_AXIS, Pipeline
from autopar.ir.program import Program
from autopar.runtime.assemble import assemble
from autopar.runtime.compiled import Compile
from autopar.runtime.devices import Here
from autopar.runtime.dtypes import TORCH_DTYPES, as_real
from autopar.runtime.joining import forward_only, join
from autopar.runtime.norm import grad_norm
from autopar.runtime.parameters import Names, StoredAhead, Whole
from autopar.runtime.pipeline import Pipelined
from autopar.runtime.reading import part_of
from autopar.runtime.runnable import Parts

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Staged:
    """The stages of this rank in one mode of the model, and what runs them."""

    parts: Mapping[int, Parts]
    pipelined: Pipelined


class Stages:
    """Making one is a collective of all ranks.

    A parameter that several stages use (tied embedding and head) stands in each of them. It belongs to the first; after
    the schedule every copy has the sum of their gradients, so that equal optimizers keep them equal.
    """

    def __init__(
        self, program: Program, pipeline: Pipeline, here: Here, whole: Whole, names: Names, *, compile: Compile
    ) -> None:
        self._program, self._pipeline, self._here, self._names = program, pipeline, here, names
        self._place = here.device_mesh.get_local_rank(PIPELINE_AXIS)
        self._group = here.device_mesh.get_group(PIPELINE_AXIS)
        self._places = _places(pipeline)
        local = pipeline.local(self._place)
        wanted = Counter(p.fqn for index in local for p in pipeline.stages[index].program.parameters)
        given = StoredAhead(whole, here, program.parameters, _constants(program), wanted)
        self.parts = {
            index: assemble(pipeline.stages[index].program, here, given, compile=compile, staged=True)
            for index in local
        }
        self.tensors: dict[str, Tensor] = {}
        self._followers: list[tuple[Tensor, Tensor]] = []
        for parts in self.parts.values():
            for name, tensor in parts.tensors.items():
                if name in self.tensors:
                    self._followers.append((self.tensors[name], tensor))
                else:
                    self.tensors[name] = tensor
        self._tied = _tied(pipeline, here)
        self.first = Staged(parts=self.parts, pipelined=Pipelined(pipeline, self.parts, here, self._group))

    def join(self, pipeline: Pipeline, constants: Mapping[str, Tensor]) -> tuple[Staged, str]:
        """Another program cut into the same stages, on the tensors that they hold; and why it has no backward, if so.

        A collective of all ranks. ``constants``: its own, whole.
        """
        parts = {
            index: join(pipeline.stages[index].program, constants, held, self._here)
            for index, held in self.parts.items()
        }
        reasons = [
            forward_only(ours.program, theirs.program)
            for ours, theirs in zip(pipeline.stages, self._pipeline.stages, strict=True)
        ]
        pipelined = Pipelined(pipeline, parts, self._here, self._group)
        return Staged(parts=parts, pipelined=pipelined), next(filter(None, reasons), "")

    def step(
        self, staged: Staged, given: Mapping[str, Tensor], rng: Tensor, *, training: bool,
        scale: Callable[[Tensor], Tensor] = lambda loss: loss,
    ) -> Tensor:  # fmt: skip
        """One run of the schedule; the loss over the global batch. Its backward begins at ``scale(loss)``."""
        self._follow()
        if not training:
            return staged.pipelined.step(given, rng, training=False, scale=scale)
        copies = [self.tensors[name] for name in self._tied if name in self.tensors]
        copies += [tensor for _, tensor in self._followers if isinstance(tensor, nn.Parameter)]
        before = [copy.grad for copy in copies]
        for copy in copies:
            copy.grad = None
        with ExitStack() as ends:
            for parts in self.parts.values():
                ends.enter_context(parts.sums.once())
                if self._pipeline.schedule != "zero_bubble":  # torch looks for its gradients by a stage's parameters
                    ends.enter_context(parts.leaves.step())
            loss = staged.pipelined.step(given, rng, training=True, scale=scale)
        self._sum_tied()
        for copy, earlier in zip(copies, before, strict=True):
            if earlier is not None and copy.grad is not None:
                copy.grad += earlier
            elif earlier is not None:
                copy.grad = earlier
        return loss

    def grad_norm(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> Tensor:
        """2-norm of the gradients of all stages; one that several hold counts once."""
        own = [held for name, held in parameters if self._places.get(name, (self._place,))[0] == self._place]
        total = grad_norm(own, self._here.device).square().to(torch.float64)
        dist.all_reduce(total, group=self._group)
        return total.sqrt()

    def everywhere(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors of all stages on every rank, from those of this rank's; in the order of the model.

        A name is left out that the first stage which holds it gives no tensor for.
        """
        made: dict[str, Tensor] = {}
        for parameter in self._program.parameters:
            source = dist.get_global_rank(self._group, self._places[parameter.fqn][0])
            tensor = found.get(parameter.fqn)
            there = torch.tensor(tensor is not None, device=self._here.device)
            dist.broadcast(there, src=source, group=self._group)
            if not there:
                continue
            if tensor is None:
                dtype = TORCH_DTYPES[parameter.type.dtype]
                tensor = torch.empty(parameter.type.shape, dtype=dtype, device=self._here.device)
            made[parameter.fqn] = tensor.contiguous()
            dist.broadcast(as_real(made[parameter.fqn]), src=source, group=self._group)
        return {name: made[name] for name in dict.fromkeys((*self._names.order, *made)) if name in made}

    def of_all(self, value: T) -> list[T]:
        """What every place of the pipeline gave, on all of them. A collective."""
        found: list[Any] = [None] * self._pipeline.ranks
        dist.all_gather_object(found, value, group=self._group)
        return found

    def _follow(self) -> None:
        """Copies of a tensor on this rank are given the values of the one that the user sees."""
        with torch.no_grad():
            for leader, follower in self._followers:
                part_of(follower).copy_(part_of(leader))

    def _sum_tied(self) -> None:
        """Gradients of the copies of a parameter, added up over stages. A collective of those that hold one."""
        for leader, follower in self._followers:
            if follower.grad is not None and leader.grad is not None:
                part_of(leader.grad).add_(part_of(follower.grad))
            elif follower.grad is not None:
                leader.grad = follower.grad
            follower.grad = None
        for name, group in self._tied.items():
            if name not in self.tensors:
                continue
            copy = self.tensors[name]
            if copy.grad is None:
                copy.grad = torch.zeros_like(copy)
            dist.all_reduce(part_of(copy.grad), group=group)


def _places(pipeline: Pipeline) -> dict[str, tuple[int, ...]]:
    """Places on the pipeline axis that hold each parameter and buffer, that of its first stage first."""
    found: dict[str, dict[int, None]] = {}
    for index, stage in enumerate(pipeline.stages):
        for parameter in stage.program.parameters:
            found.setdefault(parameter.fqn, {})[pipeline.place(index)] = None
    return {name: tuple(places) for name, places in found.items()}


def _tied(pipeline: Pipeline, here: Here) -> dict[str, dist.ProcessGroup]:
    """Trained parameters that stand at several places, each with this rank's group of those places.

    Every rank makes all groups, in the same order.
    """
    trained = {p.fqn for stage in pipeline.stages for p in stage.program.parameters if p.trainable}
    shared = {name: tuple(sorted(at)) for name, at in _places(pipeline).items() if len(at) > 1 and name in trained}
    place = here.device_mesh.get_local_rank(PIPELINE_AXIS)
    columns = here.device_mesh.mesh.movedim(
        (here.device_mesh.mesh_dim_names or ()).index(PIPELINE_AXIS), 0
    ).flatten(1).T.tolist()
    groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
    for places in dict.fromkeys(shared.values()):
        for column in columns:
            made = dist.new_group([column[at] for at in places])
            if dist.get_rank() in column and place in places:
                groups[places] = made
    return {name: groups[places] for name, places in shared.items() if places in groups}


def _constants(program: Program) -> dict[str, Layout]:
    """Constants of the program that are no parameters, with their layouts."""
    described = {parameter.fqn for parameter in program.parameters}
    found: dict[str, Layout] = {}
    for graph in (program.graph, *([program.prologue] if program.prologue else [])):
        for node in graph.sources("constant"):
            name = str(node.attr("fqn"))
            if name not in described and node.result.layout is not None:
                found.setdefault(name, node.result.layout)
    return found

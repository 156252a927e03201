"""Run a plan's program as any rank of a large cluster, on tensors without memory, and write down its collectives.

``trained`` runs the whole ``ParallelModule``, FSDP2 included, on fake tensors: seconds a rank. ``lowered`` runs
the lowered graphs alone, on meta tensors and with the calls into torch.distributed replaced: tens of milliseconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.ir.graph import Node
from autopar.ir.layout import R
from autopar.ir.program import Program
from autopar.runtime import collectives
from autopar.runtime.calls import Instance, chain, in_slot_order, slots_of
from autopar.runtime.devices import Here, here
from autopar.runtime.dtypes import TORCH_DTYPES
from autopar.runtime.inputs import graph_inputs, inputs_of
from autopar.runtime.module import ParallelModule
from autopar.runtime.program import build, stored_nodes
from autopar.runtime.runnable import needed, written_names
from autopar.runtime.unanimous import Unanimous
from autopar.runtime.updates import Updates

# Operations of torch's dispatcher by the names of torch.distributed: NCCL has all of these, and no others are known.
NAMES = {
    "allreduce_": "all_reduce", "_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter",
    "alltoall_base_": "all_to_all_single", "broadcast_": "broadcast",
}  # fmt: skip


class Collective(NamedTuple):
    """One call: the operation, the shapes of what it receives and sends, their dtype."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype


# By the ranks of the group, in the order of the calls.
Sent: TypeAlias = dict[tuple[int, ...], list[Collective]]


@dataclass(eq=False)
class Recorder(TorchDispatchMode):
    """Every collective that reaches torch's dispatcher."""

    calls: Sent = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # what it does with its parts comes back here
        if func.namespace in ("c10d", "_c10d_functional"):
            self._write(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _write(self, func: Any, args: Any, kwargs: Any) -> None:
        name = func._schema.name.split("::")[1]
        if name in ("wait_tensor", "monitored_barrier_"):
            return
        given = [*args, *kwargs.values()]
        tensors = [tensor for value in given for tensor in _tensors(value)]
        ranks = tuple(dist.get_process_group_ranks(_group(given)))
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        entry = Collective(NAMES.get(name, name), shapes, tensors[0].dtype)
        self.calls.setdefault(ranks, []).append(entry)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for part in value for t in _tensors(part)] if isinstance(value, (list, tuple)) else []


def _group(values: list[Any]) -> dist.ProcessGroup:
    for value in values:
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return dist.ProcessGroup.unbox(value)
    raise AssertionError(f"no process group among {values}")


@contextlib.contextmanager
def rank_of(world_size: int, rank: int) -> Iterator[None]:
    """A process group in which nothing is sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def _real_meshes() -> Iterator[None]:
    """Device meshes read their ranks from tensors, which must have values."""

    def real(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with unset_fake_temporarily():
                return method(*args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for name in ("__init__", "__getitem__", "_flatten"):
            stack.enter_context(mock.patch.object(DeviceMesh, name, real(getattr(DeviceMesh, name))))
        yield


def trained(program: Program, rank: int) -> Sent:
    """What ``rank`` sends in one ``train_step`` and the clipping after it.

    Requires a process of its own: torch's caches of DTensor hold the groups of the first world.
    """
    kinds = {p.fqn: p for p in program.parameters}
    with rank_of(program.mesh.world_size, rank), _real_meshes(), FakeTensorMode(allow_non_fake_inputs=True):
        shape = tuple(size for _, size in program.mesh.axes)
        with unset_fake_temporarily():
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=program.mesh.names)

        def whole(name: str) -> Tensor:
            kind = kinds[name].type if name in kinds else constants[name]
            return torch.empty(kind.shape, dtype=TORCH_DTYPES[kind.dtype])

        constants = {
            str(node.attr("fqn")): node.result.type
            for graph in (program.graph, *([program.prologue] if program.prologue else []))
            for node in graph.sources("constant")
        }
        model = ParallelModule(program, mesh, whole)
        batch = {
            name: torch.zeros(entry.local_shape, dtype=TORCH_DTYPES[entry.type.dtype])
            for name, entry in inputs_of(program).items()
        }
        recorder = Recorder()
        # The ranks' agreement on their inputs reads a number, which a fake tensor does not have.
        with recorder, mock.patch.object(Unanimous, "run", lambda self, prepare, call: prepare()):
            model.train_step(**batch)
            model.clip_grad_norm_(1.0)
    return recorder.calls


def lowered(program: Program, rank: int) -> Sent:
    """What the graphs of a program send in a forward and backward of every microbatch; FSDP2's is not in it."""
    calls: Sent = {}

    def write(name: str) -> Callable[..., None]:
        def call(
            *tensors: Tensor, op: Any = None, group: dist.ProcessGroup, async_op: bool = False
        ) -> None:
            entry = Collective(name, tuple(tuple(t.shape) for t in tensors), tensors[0].dtype)
            calls.setdefault(tuple(dist.get_process_group_ranks(group)), []).append(entry)

        return call

    with rank_of(program.mesh.world_size, rank), contextlib.ExitStack() as stack:
        shape = tuple(size for _, size in program.mesh.axes)
        at = here(program.mesh, init_device_mesh("cpu", shape, mesh_dim_names=program.mesh.names))
        for owner, name in ((collectives, "all_gather"), (collectives, "reduce_scatter"), (dist, "all_reduce"),
                            (dist, "all_to_all_single")):  # fmt: skip
            stack.enter_context(mock.patch.object(owner, name, write(name)))
        _run(program, at)
    return calls


def _run(program: Program, at: Here) -> None:
    meta = torch.device("meta")
    parameters = {p.fqn: p for p in program.parameters}
    made: dict[str, Tensor] = {}

    def stored(node: Node) -> Tensor:
        """The tensor that FSDP2 and the holders hand to a graph, or its constant."""
        name = str(node.attr("fqn"))
        if name not in made:
            if name in parameters:
                found = parameters[name]
                layout = found.layout
                for axis in found.runtime_axes:
                    layout = layout.replace(axis, R)
                shape, dtype, learns = layout.local_shape(found.type.shape), found.compute_dtype, found.trainable
            else:
                assert node.result.layout is not None
                shape = node.result.layout.local_shape(node.result.type.shape)
                dtype, learns = node.result.type.dtype, False
            made[name] = torch.empty(shape, dtype=TORCH_DTYPES[dtype], device=meta, requires_grad=learns)
        return made[name]

    blocks = {b.name: build(b, at.coordinate, at.groups, meta, overlap=True) for b in program.graph.blocks}

    def call_of(node: Node) -> Any:
        block = program.graph.block(str(node.attr("block")))
        instances = []
        for slots in slots_of(node):
            names = in_slot_order(block, slots)
            given = dict(zip(names, stored_nodes(block), strict=True))

            def read(name: str, given: dict[str, Node] = given) -> Tensor:
                return stored(given[name].with_attrs(fqn=name))

            recompute, written = program.recompute.get(block.name), written_names(block, slots)
            instances.append(Instance(blocks[block.name], names, None, read, recompute, written, Updates({})))
        return chain(instances, int(str(node.attr("carried", 0))), collects=False)

    values: dict[str, Tensor] = {
        name: torch.zeros(entry.local_shape, dtype=TORCH_DTYPES[entry.type.dtype], device=meta)
        for name, entry in inputs_of(program).items()
    }
    if program.prologue is not None:
        ahead = build(program.prologue, at.coordinate, at.groups, meta)
        given = [values[entry.name] for entry in graph_inputs(program.prologue)]
        results = ahead(*given, *(stored(node) for node in stored_nodes(program.prologue)))
        values |= dict(zip(program.prologue.outputs, results, strict=True))
    assert program.loss is not None
    graph = needed(program.graph, (program.loss,))
    main = build(graph, at.coordinate, at.groups, meta, calls=call_of, overlap=True)
    for index in range(program.microbatches):
        parts = [entry.microbatch(values[entry.name], index) for entry in graph_inputs(graph)]
        loss, *_ = main(*parts, *(stored(node) for node in stored_nodes(graph)))
        loss.backward()

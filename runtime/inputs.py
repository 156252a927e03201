"""What the user passes: names, shapes, this rank's part of a batch, microbatches of that part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from autopar.ir.errors import UsageError
from autopar.ir.graph import Graph
from autopar.ir.layout import Layout, R, Shard
from autopar.ir.program import DATA_AXIS, MICROBATCH_AXIS, RNG_INPUT, Program
from autopar.ir.types import TensorType
from autopar.runtime import local
from autopar.runtime.dtensors import local_part
from autopar.runtime.dtypes import IR_DTYPES, TORCH_DTYPES
from autopar.runtime.shares import Share


class Calling(Protocol):
    """How the model is called: what of a call is a tensor, and which of the program's inputs it is."""

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """The tensors of a call by name. Raises UsageError for a call that the program was not made for."""

    def refill(self, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
        """(args, kwargs) of the call with other tensors, by name."""

    def of_batch(self, batch: Any) -> Any:
        """(args, kwargs) of the call that a batch stands for."""


class Plain:
    """A program that is called with its inputs: tensors, in their order or by their names."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        return by_name(self._names, args, kwargs)

    def refill(self, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
        order = list(self.flatten(args, kwargs))
        return tuple(tensors[name] for name in order[: len(args)]), {name: tensors[name] for name in kwargs}

    def of_batch(self, batch: Any) -> Any:
        if isinstance(batch, Mapping):
            return (), dict(batch)
        return (batch,) if isinstance(batch, Tensor) else tuple(batch), {}


@dataclass(frozen=True, kw_only=True)
class Input:
    """One input of a program: its global type and its layout, microbatches included.

    ``lowered``: mixed precision made it of float32, which may be given as well. ``share``: this rank's, where
    data-parallel ranks take unequal ones.
    """

    name: str
    type: TensorType
    layout: Layout
    lowered: bool = False
    share: Share | None = None

    def cast(self, tensor: Tensor) -> Tensor:
        """What was given in the type that the program takes."""
        return tensor.to(TORCH_DTYPES[self.type.dtype]) if self.lowered else tensor

    def takes(self, dtype: str) -> bool:
        return dtype == self.type.dtype or (self.lowered and dtype == "f32")

    @property
    def whole_batch(self) -> Layout:
        """The layout of what a rank is given: all microbatches together."""
        if MICROBATCH_AXIS not in self.layout.mesh.names:
            return self.layout
        return self.layout.replace(MICROBATCH_AXIS, R)

    def split_dim(self, axis: str) -> int | None:
        """The dim that the axis splits; None where all along it have the whole."""
        place = self.layout[axis] if axis in self.layout.mesh.names else R
        return place.dim if isinstance(place, Shard) else None

    @property
    def batch_dim(self) -> int | None:
        """The dim that data-parallel ranks split."""
        return self.split_dim(DATA_AXIS)

    @property
    def local_shape(self) -> tuple[int, ...]:
        shape = list(self.whole_batch.local_shape(self.type.shape))
        if self.share is not None and self.batch_dim is not None:
            shape[self.batch_dim] = self.share.rows(self.type.shape[self.batch_dim])
        return tuple(shape)

    def local_part(self, tensor: Tensor, coordinate: Mapping[str, int]) -> Tensor:
        """This rank's part of the whole batch, in memory of its own."""
        if self.share is not None and self.batch_dim is not None:
            return self.share.part(tensor, self.batch_dim)
        return local_part(tensor, self.whole_batch, coordinate)

    def microbatch(self, tensor: Tensor, index: int, count: int | None = None) -> Tensor:
        """Microbatch ``index`` of the ``count`` in a rank's part; None: as many as the mesh says."""
        mesh = self.layout.mesh
        if MICROBATCH_AXIS not in mesh.names or not isinstance(self.layout[MICROBATCH_AXIS], Shard):
            return tensor
        place = self.layout[MICROBATCH_AXIS]
        assert isinstance(place, Shard)
        outer = self.layout.local_outer(place.dim, place.outer)
        return local.take(tensor, place.dim, outer, count or mesh.size(MICROBATCH_AXIS), index)


def inputs_of(program: Program, *, lowered: bool = False, share: Share | None = None) -> dict[str, Input]:
    """What the user passes, in order: inputs of the main graph and the prologue but not what is made here.

    ``lowered``: the program is of mixed precision, which took float32 for half precision. ``share``: this rank's.
    """
    made = {RNG_INPUT, *(program.prologue.outputs if program.prologue else ())}
    found = {entry.name: entry for entry in graph_inputs(program.graph) if entry.name not in made}
    if program.prologue:
        for entry in graph_inputs(program.prologue):
            if entry.name != RNG_INPUT:
                found.setdefault(entry.name, entry)
    if share is not None and share.unequal:
        found = {name: replace(entry, share=share) for name, entry in found.items()}
    half = [name for name, entry in found.items() if lowered and entry.type.dtype in ("bf16", "f16")]
    return {**found, **{name: replace(found[name], lowered=True) for name in half}}


def draws(program: Program) -> bool:
    """Whether the program draws random numbers."""
    return any(entry.name == RNG_INPUT for entry in graph_inputs(program.graph))


def graph_inputs(graph: Graph) -> list[Input]:
    entries = []
    for node in graph.sources("input"):
        assert node.result.layout is not None
        entries.append(Input(name=str(node.attr("name")), type=node.result.type, layout=node.result.layout))
    return entries


def by_name(
    expected: Sequence[str], args: Sequence[Tensor], kwargs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Positional and keyword arguments under the inputs' names. Raises UsageError for one too many or few."""
    if len(args) > len(expected):
        raise UsageError(f"{len(args)} positional inputs were given, the model takes {len(expected)}")
    given = dict(zip(expected, args, strict=False))
    for name, tensor in kwargs.items():
        if name not in expected or name in given:
            problem = "was given twice" if name in given else "is not an input"
            raise UsageError(f"{name} {problem}; the inputs are {', '.join(expected)}")
        given[name] = tensor
    missing = [name for name in expected if name not in given]
    if missing:
        raise UsageError(f"input {missing[0]} is missing; the inputs are {', '.join(expected)}")
    return given


def check(expected: Mapping[str, Input], given: Mapping[str, Tensor], *, whole: bool) -> None:
    """Raises UsageError where a shape or element type is not what the plan was made for."""
    for name, entry in expected.items():
        tensor = given[name]
        if not isinstance(tensor, Tensor):
            raise UsageError(f"input {name}: expected a tensor, given a {type(tensor).__name__}")
        shape = entry.type.shape if whole else entry.local_shape
        dtype = IR_DTYPES.get(tensor.dtype, str(tensor.dtype))
        if tuple(tensor.shape) != shape or not entry.takes(dtype):
            part = "global batch" if whole else f"this rank's part of {entry.type}"
            wanted, found = str(TensorType(entry.type.dtype, shape)), f"{dtype}[{','.join(map(str, tensor.shape))}]"
            smaller = tensor.dim() == len(shape) and tuple(tensor.shape[1:]) == shape[1:] and tensor.shape[0] < shape[0]
            hint = "shard_inputs(batch, pad=True)" if whole else "pad_inputs(batch)"
            raise UsageError(
                f"input {name}: expected {wanted} ({part}), given {found}"
                + (f"; {hint} fills up a smaller batch" if smaller and entry.takes(dtype) else ""),
                details={"input": name, "expected": wanted, "given": found},
            )


def shard(
    expected: Mapping[str, Input], given: Mapping[str, Tensor], coordinate: Mapping[str, int]
) -> dict[str, Tensor]:
    """This rank's part of every input."""
    return {name: entry.local_part(given[name], coordinate) for name, entry in expected.items()}


def evened(program: Program, given: Mapping[str, Tensor], share: Share) -> Mapping[str, Tensor]:
    """What is given, with the rows of equal shares of what the prologue reads. Collective where shares are unequal."""
    if not share.unequal or program.prologue is None:
        return given
    read = {entry.name: entry.batch_dim for entry in graph_inputs(program.prologue)}
    return {
        name: tensor if (dim := read.get(name)) is None else share.evened(tensor, dim) for name, tensor in given.items()
    }

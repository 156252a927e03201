"""An exported program as one list of operations over numbered values.

Regions in which gradients or autocast are off stand in graphs of their own; here they are part of the list.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node, map_arg

_library = torch.library.Library("autopar_twice", "DEF")
_library.define("between(Tensor result) -> ()")
BETWEEN = torch.ops.autopar_twice.between.default
"""Stands between two calls in one program."""
torch.fx.has_side_effect(BETWEEN)


@torch.library.register_fake("autopar_twice::between", lib=_library)  # type: ignore[untyped-decorator]
def _between(result: torch.Tensor) -> None:
    return None


# What they write to has nothing of before.
_FILLS = ("copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operation. ``says``: all but its operands. ``reads``: values whose elements it needs, ``written``: changes in
    place. ``of``: the value that the result is a view of, or is; ``idle``: it shows all of it as it is. ``drawn``: from
    random numbers. ``first``: before ``BETWEEN``."""

    target: str
    says: str
    reads: tuple[int, ...]
    written: tuple[int, ...]
    of: int | None
    result: int
    idle: bool
    drawn: bool
    first: bool


@dataclass
class Inlined:
    """``inputs``, ``buffers``, ``constants``: values given. ``single``: what those of one element are. ``results``:
    returned."""

    steps: list[Step] = field(default_factory=list)
    inputs: set[int] = field(default_factory=set)
    buffers: set[int] = field(default_factory=set)
    constants: set[int] = field(default_factory=set)
    single: dict[int, object] = field(default_factory=dict)
    results: list[int | None] = field(default_factory=list)
    values: int = 0
    first: bool = True

    @classmethod
    def of(cls, program: ExportedProgram) -> Inlined:
        made = cls()
        given = []
        for spec in program.graph_signature.input_specs:
            given.append(made.value())
            kinds = {
                InputKind.USER_INPUT: made.inputs, InputKind.BUFFER: made.buffers,
                InputKind.CONSTANT_TENSOR: made.constants,
            }  # fmt: skip
            kinds.get(spec.kind, set()).add(given[-1])
            held = program.constants.get(spec.target or "")
            if type(held) is torch.Tensor and not held.is_meta and held.numel() == 1:
                made.single[given[-1]] = held.item()
        made.results = made.run(program.graph_module, given)
        return made

    def value(self) -> int:
        self.values += 1
        return self.values - 1

    def run(self, module: GraphModule, given: Sequence[int]) -> list[int | None]:
        """Append what a graph does with the values ``given``; what it returns."""
        known: dict[Node, Any] = {}
        left = itertools.chain(given, iter(self.value, None))  # of another kind of region the order is not known
        for node in module.graph.nodes:
            if node.op == "output":
                return [known[result] if isinstance(result, Node) else None for result in node.args[0]]
            if node.op == "placeholder":
                known[node] = next(left)
            elif node.op == "get_attr":
                part = getattr(module, str(node.target))
                known[node] = part if isinstance(part, GraphModule) else self.value()
            elif node.target is BETWEEN:
                self.first = False
            else:
                known[node] = self._result(node, known)
        return []

    def _result(self, node: Node, known: dict[Node, Any]) -> Any:
        """The number of what it gives, several of a region."""
        operands: list[Any] = [known.get(arg) if isinstance(arg, Node) else None for arg in node.args]
        part = next((n for n, operand in enumerate(operands) if isinstance(operand, GraphModule)), None)
        if part is not None:
            return self.run(operands[part], [each for each in operands[part + 1 :] if isinstance(each, int)])
        own = operands[0] if operands else None
        if node.target is operator.getitem and isinstance(own, list):
            return own[node.args[1]]  # type: ignore[index]
        if node.target is torch.ops.aten.broadcast_tensors.default:  # those of the full shape are what they were
            return [known[each] for each in node.args[0]]  # type: ignore[union-attr, index]
        reads: list[int] = []

        def say(one: Node) -> Any:
            reads.append(known[one])
            return self.single.get(known[one])

        says = repr((str(node.target), map_arg((node.args, node.kwargs), say)))
        written, viewed = _aliases(node)
        result = self.value()
        if str(node.target).startswith("aten.lift_fresh") and own in self.single:
            self.single[result] = self.single[own]
        self.steps.append(Step(
            target=str(node.target), says=says, reads=tuple(_needed(str(node.target), reads)),
            written=tuple(known[each] for each in written), of=own if viewed and isinstance(own, int) else None,
            result=result, idle=viewed and not written and bool(node.args) and _type(node) == _type(node.args[0]),
            drawn=torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()), first=self.first,
        ))  # fmt: skip
        return result


def _aliases(node: Node) -> tuple[list[Node], bool]:
    """The operands that it writes to, and whether its result is its first operand or a view of it."""
    if node.target is operator.getitem:
        return [], True
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return [], False
    given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | dict(node.kwargs)
    written = [
        given[argument.name] for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given
    ]  # fmt: skip
    viewed = bool(schema.returns) and schema.returns[0].alias_info is not None
    return [each for each in written if isinstance(each, Node)], viewed


def _needed(target: str, reads: list[int]) -> list[int]:
    """Without those whose shape or type alone is asked for, or that are filled."""
    name = target.removeprefix("aten.").partition(".")[0]
    if name.startswith("new_") or name.endswith("_like"):
        return []
    if name in _FILLS:
        return reads[1:]
    return reads[:1] if name.endswith("_as") else reads


def _type(node: Any) -> object:
    """Shape, strides, element type and device of its result; the node itself where that is not one tensor."""
    made = getattr(node, "meta", {}).get("val")
    if not isinstance(made, torch.Tensor):
        return node
    return tuple(made.shape), made.stride(), made.dtype, made.device

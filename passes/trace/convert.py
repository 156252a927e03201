"""Read an exported fx graph into the IR."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import InputKind

from autopar.ir.errors import UnsupportedError
from autopar.ir.graph import Graph, Node, Operand, Value, sorted_attrs
from autopar.ir.live import live_nodes
from autopar.ir.types import Attr, TensorType
from autopar.passes.trace import delta_rule, experts, functions
from autopar.passes.trace.aliases import Aliases
from autopar.passes.trace.arguments import bind
from autopar.passes.trace.assigns import DETACH, Write, with_assigns
from autopar.passes.trace.chains import middles
from autopar.passes.trace.communication import communicates, refusal
from autopar.passes.trace.dtypes import tensor_type
from autopar.passes.trace.failure import no_values
from autopar.passes.trace.instances import Instance
from autopar.passes.trace.itself import gives_itself
from autopar.passes.trace.repeats import MARK, REPEAT_ONE, REPEATS, UnrepeatableError
from autopar.passes.trace.replay import regions, standing_for
from autopar.passes.trace.source import source_of
from autopar.passes.trace.traced import ParamInfo
from autopar.passes.trace.writes import is_write, tracks_statistics, unseen_write, written_argument, written_value
from autopar.passes.trace.written import written

# What an fx node stands for: a value, nothing, or several of them.
Bound: TypeAlias = "str | None | tuple[Bound, ...]"

_NO_EFFECT = (
    "aten._assert_tensor_metadata",
    "aten._assert_async",
    "aten._assert_scalar",
    "aten.sym_constrain_range",
)
# What is left of them without a device is a cast.
_CASTS = ("aten.to.device", "aten.to.dtype_layout", "aten.to.prim_Device", "aten._to_copy.default")
# Made anew, of the sizes of a tensor.
_MADE = re.compile(r"aten\.(\w+_like|new_\w+)\.")
_OURS = {**delta_rule.TARGETS, **experts.TARGETS, **functions.TARGETS}
_TRANSPARENT = ("aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.detach_.default")


class Reader:
    """Reads one exported program; ``nodes`` grows in topological order.

    ``names`` maps the names of parameters and buffers in the program to those of the model, which ``parameters``
    describe. With ``gaps`` the middle of a long chain of repeated calls is not read, and ``gaps`` says what is missing.
    """

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        names: Mapping[str, str],
        parameters: Sequence[ParamInfo],
        prefix: str,
        repeated: Sequence[tuple[Instance, Instance]] = (),
        *,
        gaps: bool = False,
    ) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, torch.Tensor] = {}
        self._program = program
        self._names = names
        self._parameters = parameters
        self._prefix = prefix
        self._types: dict[str, TensorType] = {}
        self._counts: Counter[str] = Counter()  # of values named after one operation
        self._env: dict[fx.Node, Bound] = {}
        self._learns: set[str] = set()  # values through which a gradient reaches a parameter
        self._slots: dict[str, str] = {}  # parameter, buffer or constant -> its value
        self._module = program.graph_module
        self._repeated = repeated
        self._regions = regions(program.graph_module) if repeated else {}
        self._places: dict[str, list[fx.Node]] = {}  # by parameter or buffer, its placeholders
        self._renamed: list[tuple[Instance, Instance]] = []
        self._unseen: frozenset[str] = frozenset()  # values from outside of a region without gradients
        self._aliases: Aliases | None = None
        every = (node for module in self._module.modules() for node in module.graph.nodes)
        if any(is_write(node) or tracks_statistics(node) for node in every):
            self._aliases = Aliases(self.emit)
        changed = written(program, names) if gaps and self._aliases is not None else frozenset[str]()
        left_out = list(middles(self._module.graph, self._regions, repeated, changed)) if gaps else []
        self.gaps = tuple(middle.gap for middle in left_out)
        self._instead = {node: middle.before for middle in left_out for node in middle.nodes}

    def read(self, input_names: tuple[str, ...], loss: int | None) -> tuple[Graph, tuple[str, ...]]:
        """The graph, and the names of the buffers that it changes. ``loss``: its index among the outputs."""
        specs = {spec.arg.name: spec for spec in self._program.graph_signature.input_specs}
        inputs = iter(input_names)
        for info in self._parameters:
            attrs: dict[str, Attr] = {} if info.buffer or info.trainable else {"trainable": False}
            type_ = TensorType(info.compute_dtype, info.type.shape)
            self._slots[info.fqn] = self._leaf("buffer" if info.buffer else "param", info.fqn, type_, **attrs)
        placeholders = [node for node in self._program.graph.nodes if node.op == "placeholder"]
        for node in placeholders:
            spec = specs[node.name]
            if spec.kind is InputKind.USER_INPUT:
                name = next(inputs)
                self._env[node] = self._leaf("input", name, tensor_type(node.meta["val"], name))
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                fqn = self._names[str(spec.target)]
                self._places.setdefault(fqn, []).append(node)
                self._env[node] = self._slots[fqn]
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                self._env[node] = self._constant(str(spec.target), node)
            else:
                raise UnsupportedError(f"the model holds {spec.target}, a {spec.kind.name}, which is not supported")
        returned = self._body(self._module)
        outputs = tuple(self._current(name) for name in returned if isinstance(name, str))
        updates = self._updates()
        nodes, outputs = with_assigns(self.nodes, outputs, loss, tuple(updates.values()), self._learns)
        return Graph(name="main", nodes=live_nodes(nodes, outputs), outputs=outputs), tuple(updates)

    def emit(
        self,
        target: str,
        operands: tuple[Operand, ...],
        attrs: dict[str, Attr],
        type_: TensorType,
        source: str,
    ) -> str:
        return self._emit(target, operands, attrs, (type_,), source, target.split(".")[1])[0]

    def _emit(
        self,
        target: str,
        operands: tuple[Operand, ...],
        attrs: dict[str, Attr],
        types: tuple[TensorType, ...],
        source: str,
        base: str,
    ) -> tuple[str, ...]:
        names = []
        for at, type_ in enumerate(types):
            name = wanted = base if len(types) == 1 else f"{base}_{at}"
            while name in self._types:
                self._counts[wanted] += 1
                name = f"{wanted}_{self._counts[wanted]}"
            self._types[name] = type_
            names.append(name)
        results = tuple(Value(name, type_) for name, type_ in zip(names, types, strict=True))
        node = Node(results=results, target=target, operands=operands, attrs=sorted_attrs(attrs), source=source)
        self.nodes.append(node)
        apart = target in (DETACH, "aten.detach.default") or _MADE.match(target)
        if not apart and not self._learns.isdisjoint(node.uses()):
            self._learns.update(names)
        return tuple(names)

    def _leaf(self, target: str, fqn: str, type_: TensorType, **attrs: Attr) -> str:
        base = "".join(c if c.isalnum() else "_" for c in fqn)
        key = "name" if target == "input" else "fqn"
        (name,) = self._emit(target, (), {key: fqn, **attrs}, (type_,), "", base)
        if target == "param" and "trainable" not in attrs:
            self._learns.add(name)
        if self._aliases is not None:
            self._aliases.root(name, type_)
        return name

    def _constant(self, target: str, node: fx.Node) -> str:
        """A single number is written into the graph, anything larger kept aside."""
        value = self._program.constants[target]
        assert isinstance(value, torch.Tensor)
        fqn = target.removeprefix(self._prefix)
        type_ = tensor_type(value, fqn)
        if value.is_meta or isinstance(value, FakeTensor):
            raise no_values(fqn)
        if value.numel() == 1 and not type_.is_complex:
            attrs: dict[str, Attr] = {"size": type_.shape, "fill_value": value.item(), "dtype": type_.dtype}
            name = self.emit("aten.full.default", (), attrs, type_, "")
            if self._aliases is not None:
                self._aliases.root(name, type_)
            return name
        self.constants[fqn] = value
        self._slots[fqn] = self._leaf("constant", fqn, type_)
        return self._slots[fqn]

    def _body(self, module: fx.GraphModule) -> tuple[Bound, ...]:
        """Read all but the placeholders, and return what the graph returns."""
        for node in module.graph.nodes:
            if node.op == "output":
                return tuple(self._env[item] if isinstance(item, fx.Node) else None for item in node.args[0])
            if node.op == "call_function":
                self._env[node] = self._call(module, node)
        return ()

    def _again(self, node: fx.Node) -> Bound:
        """Read again, for the call that ``node`` stands for, what the call that it repeats left in the graph."""
        if node in self._instead:
            return self._env[self._instead[node]]
        site, number, tensors = node.args
        assert isinstance(site, int) and isinstance(number, int)
        region, pair = self._regions.get(site), self._repeated[number]
        if region is None:
            raise UnrepeatableError(f"no call of {pair[0].path} is marked")
        stored = self._places, self._slots
        with standing_for(self._env, region, tensors, pair, *stored), self._renaming(node):  # type: ignore[arg-type]
            for inner in region.nodes:
                if inner.op == "call_function":
                    self._env[inner] = self._call(region.module, inner)
            results = tuple(self._env[result] for result in region.results)
            return results[0] if node.target is REPEAT_ONE else results

    @contextmanager
    def _renaming(self, node: fx.Node) -> Iterator[None]:
        """Inside, sources in the module that leads are sources in the one that repeats it."""
        self._renamed.append(self._repeated[node.args[1]])  # type: ignore[index]
        yield
        self._renamed.pop()

    def _source(self, node: fx.Node) -> str:
        """Where ``node`` comes from; of a repeated call, where the first operation that it stands for does."""
        if node.target is MARK:
            return ""
        if node.target in REPEATS and (region := self._regions.get(node.args[0])) is not None:  # type: ignore[arg-type]
            with self._renaming(node):
                return next(filter(None, map(self._source, region.nodes)), "")
        source = source_of(node, self._prefix)
        for leads, repeats in reversed(self._renamed):
            if source.startswith((f"{leads.path} ", f"{leads.path}.")) or source == leads.path:
                source = repeats.path + source.removeprefix(leads.path)
        return source

    def _call(self, module: fx.GraphModule, node: fx.Node) -> Bound:
        target: Any = node.target
        source = self._source(node)
        if target is MARK:
            return None
        if target in REPEATS:
            return self._again(node)
        if target is operator.getitem:
            pieces = self._env[node.args[0]]  # type: ignore[index]
            assert isinstance(pieces, tuple) and isinstance(node.args[1], int)
            return pieces[node.args[1]]
        if not isinstance(target, torch._ops.OpOverload):
            return self._region(module, node, source)
        name = _OURS.get(str(target), str(target))
        if name.startswith(_NO_EFFECT):
            return None
        if name == "aten.detach_.default" and self._lookup(node.args[0]) in self._learns:  # type: ignore[arg-type]
            raise unseen_write("detach_()", source)
        if name in _TRANSPARENT or gives_itself(node, name):
            return self._env[node.args[0]]  # type: ignore[index]
        if communicates(name):
            raise UnsupportedError(f"{refusal(name)} ({source})")
        if is_write(node):
            return self._write(node, target, source)
        operands, attrs = bind(node, target, self._lookup, source or name)
        if target._opname in ("embedding", "embedding_bag"):
            attrs.pop("sparse", None)  # of the gradient, which is the same but for how it is held
        val: Any = node.meta.get("val")
        several = isinstance(val, (list, tuple))
        vals: list[Any] = [item for item in val if item is not None] if several else [val]
        if not all(isinstance(item, torch.Tensor) for item in vals):
            raise UnsupportedError(
                f"{name} gives a number, not a tensor ({source}): a number that depends on the values of a "
                f"tensor has no place in a traced model"
            )
        types = tuple(tensor_type(item, source or name) for item in vals)
        if name in _CASTS:
            name, attrs = "aten.to.dtype", {"dtype": types[0].dtype}
        if tracks_statistics(node):
            return self._batch_norm(node, tuple(operands), attrs, types[0], source)
        names = self._emit(name, tuple(operands), attrs, types, source, target._opname)
        if self._aliases is not None:
            self._note_aliases(node, names, vals)
        if not several:
            return names[0]
        rest = iter(names)
        return tuple(None if item is None else next(rest) for item in val)

    def _region(self, module: fx.GraphModule, node: fx.Node, source: str) -> Bound:
        """A region under ``no_grad`` or ``autocast``: read in place."""
        kind = getattr(node.target, "__name__", str(node.target))
        bodies = [getattr(module, str(item.target)) for item in node.all_input_nodes if item.op == "get_attr"]
        inside = [self._source(item) for body in bodies for item in body.graph.nodes]
        source = source or next(filter(None, inside), node.name)
        if kind == "wrap_with_set_grad_enabled":
            enabled, args = bool(node.args[0]), node.args[2:]
        elif kind == "wrap_with_autocast" and not node.args[2]:
            enabled, args = True, node.args[5:]
        elif kind == "wrap_with_autocast":
            raise UnsupportedError(
                f"torch.autocast inside the model is not supported ({source}); remove it and pass mixed_precision="
            )
        else:
            raise UnsupportedError(f"the higher-order operation {kind} is not supported ({source})")
        inner = bodies[0]
        places = (item for item in inner.graph.nodes if item.op == "placeholder")
        for place, given in zip(places, args, strict=True):
            assert isinstance(given, fx.Node)
            self._env[place] = self._env[given]
        outside = frozenset() if enabled else frozenset(self._types)
        before, self._unseen = self._unseen, self._unseen or outside
        results = self._body(inner)
        self._unseen = before
        return results if enabled else tuple(self._detached(name, outside, source) for name in results)

    def _detached(self, name: Bound, outside: frozenset[str], source: str) -> Bound:
        """A value from outside is that tensor itself, with its gradient, wherever it is used behind the region."""
        if not isinstance(name, str) or not self._types[name].has_gradient:
            return name
        current = self._current(name)
        if current in outside or current not in self._learns:
            return name
        detached = self.emit(DETACH, (current,), {}, self._types[name], source)
        if self._aliases is not None:
            self._aliases.root(detached, self._types[name])
        return detached

    def _batch_norm(
        self, node: fx.Node, operands: tuple[Operand, ...], attrs: dict[str, Attr], type_: TensorType, source: str
    ) -> str:
        """A batch_norm that trains: it writes the statistics that it keeps, though its schema does not say so."""
        assert self._aliases is not None
        kept = [self._env[item] for item in node.args[3:5] if isinstance(item, fx.Node)]
        assert isinstance(kept[0], str) and isinstance(kept[1], str)
        given = {name: value for name, value in attrs.items() if name in ("momentum", "eps")}
        types = (type_, *(self._types[str(name)] for name in kept))
        result, *news = self._emit("autopar.batch_norm", operands, given, types, source, "batch_norm")
        for name, new in zip(kept, news, strict=True):
            self._learns.discard(new)
            self._aliases.write(str(name), new, source)
        self._aliases.root(result, type_)
        return result

    def _updates(self) -> dict[str, Write]:
        """By name, the buffers that are written; UnsupportedError if a parameter or constant is."""
        if self._aliases is None:
            return {}
        written = [fqn for fqn, name in self._slots.items() if self._aliases.written(name)]
        buffers = {str(node.attr("fqn")) for node in self.nodes if node.target == "buffer"}
        for fqn in written:
            if fqn not in buffers:
                raise UnsupportedError(f"the model writes to {fqn} in its forward; only buffers may be written")
        news = {fqn: self._current(self._slots[fqn]) for fqn in written}
        sources = {value.name: node.source for node in self.nodes for value in node.results}
        return {
            fqn: Write(buffer=self._slots[fqn], new=new, source=sources[new])
            for fqn, new in news.items() if new != self._slots[fqn]
        }  # fmt: skip

    def _write(self, node: fx.Node, op: torch._ops.OpOverload, source: str) -> Bound:
        assert self._aliases is not None
        name = self._env[written_argument(node, op, source)]
        value = written_value(node, op, self._lookup, self.emit, source)
        assert isinstance(name, str)
        root, learned = self._aliases.root_of(name), self._current(name) in self._learns
        seen = root in self._slots.values() or (learned and root not in self._unseen)  # others are refused as such
        if not seen and self._current(root) in self._learns:
            raise unseen_write(str(op), source)
        if not seen and self._unseen and value in self._learns:
            value = self.emit(DETACH, (value,), {}, self._types[value], source)
        self._aliases.write(name, value, source)
        return name

    def _note_aliases(self, node: fx.Node, names: tuple[str, ...], vals: list[torch.Tensor]) -> None:
        """Results that share the storage of an argument are views of it."""
        assert self._aliases is not None
        step = self.nodes[-1]
        owners = {
            item.meta["val"].untyped_storage()._cdata: self._env[item]
            for item in node.all_input_nodes
            if isinstance(item.meta.get("val"), torch.Tensor)
        }
        for at, (name, val) in enumerate(zip(names, vals, strict=True)):
            parent = owners.get(val.untyped_storage()._cdata)
            if isinstance(parent, str):
                self._aliases.view(name, self._types[name], parent, step, at)
            else:
                self._aliases.root(name, self._types[name])

    def _current(self, name: str) -> str:
        return name if self._aliases is None else self._aliases.current(name)

    def _lookup(self, node: fx.Node) -> str:
        name = self._env[node]
        if not isinstance(name, str):
            raise UnsupportedError(f"{node.name} is no single tensor ({self._source(node)})")
        return self._current(name)


def is_read(target: str) -> bool:
    """Whether the reader itself knows the operation: it has no effect, or only says where a tensor lies."""
    return target.startswith(_NO_EFFECT) or target in (*_CASTS, *_TRANSPARENT)

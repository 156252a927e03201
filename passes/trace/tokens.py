"""Values that a forward reads, as tokens that are equal where two instances of a module see the same.

A token names what belongs to an instance by its place in it, so that the weights of two layers have equal tokens;
everything else is compared by value where it is plain data and by identity where it is not.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

_DEPTH, _WIDTH = 4, 1000
_PLAIN = (
    int, float, complex, bool, str, bytes, type(None), type(...), range, torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.Size,
)  # fmt: skip
_ATOMS = frozenset(_PLAIN)
ABSENT = "<absent>"
_NO_HOOKS = OrderedDict, (), (), None  # what follows below for an empty one, of which each module has several


class IncomparableError(Exception):
    """A value that changes by being read, such as an iterator."""


@dataclass(frozen=True, eq=False)
class Same:
    """Equal only to the token of the very same thing, which it keeps alive."""

    thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def state_of(module: nn.Module) -> dict[str, Any]:
    """The module's own ``__dict__``: one object, also where torch wraps the module for a trace."""
    return object.__getattribute__(module, "__dict__")  # type: ignore[no-any-return]


def is_plain(value: Any) -> bool:
    """Whether a value is plain data: equal to another one means the same."""
    return type(value) in _ATOMS


@dataclass(frozen=True, eq=False)
class Names:
    """What the things of one call are called: modules and tensors of the instance, and the call's arguments.

    Keys are identities (of a module, that of its state), values paths inside the instance or positions.
    """

    modules: Mapping[int, str]
    tensors: Mapping[int, str]
    arguments: Mapping[int, int] = field(default_factory=dict)


def token(value: Any, names: Names, depth: int = _DEPTH) -> Any:
    """What ``value`` is to a forward. Raises IncomparableError."""
    kind = type(value)
    if kind in _ATOMS or issubclass(kind, _PLAIN):
        return kind, value
    if kind is OrderedDict and not value and not value.__dict__:
        return _NO_HOOKS
    if issubclass(kind, torch.Tensor):
        return _tensor(value, names)
    if issubclass(kind, nn.Module):
        path = names.modules.get(id(state_of(value)))
        return ("module", Same(state_of(value)) if path is None else path)
    if issubclass(kind, (type, ModuleType, enum.Enum, BuiltinFunctionType)) or depth == 0:
        return Same(value)
    each = functools.partial(_each, names=names, depth=depth - 1)
    if issubclass(kind, (list, tuple, set, frozenset, dict)):
        beside = (tuple(held), each(held.values())) if (held := _held(value, "__dict__", None)) else None
        if len(value) > _WIDTH:
            return Same(value), len(value), beside
        if issubclass(kind, dict):
            return kind, each(value), each(value.values()), beside
        return kind, each(value) if issubclass(kind, (list, tuple)) else frozenset(each(value)), beside
    if issubclass(kind, MethodType):
        return "method", each((value.__self__, value.__func__))
    if issubclass(kind, functools.partial):
        return "partial", each((value.func, value.args, value.keywords))
    if issubclass(kind, FunctionType):
        return _function(value, each)
    if hasattr(kind, "__next__"):
        raise IncomparableError(f"an iterator, {kind.__name__}")
    return _object(value, each)


def _each(values: Iterable[Any], names: Names, depth: int) -> tuple[Any, ...]:
    """Their tokens; most are plain data, of which a forward may read hundreds (a configuration)."""
    return tuple([
        (kind, value) if (kind := type(value)) in _ATOMS else token(value, names, depth) for value in values
    ])  # fmt: skip


def meta(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a trace can see of a tensor."""
    return (
        type(tensor), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad
    )  # fmt: skip


def _tensor(tensor: torch.Tensor, names: Names) -> Any:
    path, position = names.tensors.get(id(tensor)), names.arguments.get(id(tensor))
    if path is None and position is None:
        return "tensor", Same(tensor), meta(tensor)
    return "tensor", path, position, meta(tensor)


def _function(function: FunctionType, each: Callable[[Iterable[Any]], Any]) -> Any:
    """Functions of one code are alike if what they enclose is."""
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            cells.append(ABSENT)
    return Same(function.__code__), each(cells), each((function.__defaults__, function.__kwdefaults__))


def _object(value: Any, each: Callable[[Iterable[Any]], Any]) -> Any:
    """An object is what its attributes are, and one that holds more than attributes is itself besides."""
    kind: type = type(value)
    if kind.__module__.partition(".")[0] in ("torch", "logging"):
        return _itself(value)
    slots = _slots(kind)
    pointers = len(slots) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    more = kind.__basicsize__ > object.__basicsize__ + pointers * _POINTER
    attributes = _held(value, "__dict__", {})
    held = each(_held(value, name, ABSENT) for name in slots), tuple(attributes), each(attributes.values())
    return _itself(value) if more else kind, held


def _itself(value: Any) -> tuple[Same, int | None]:
    return Same(value), len(value) if hasattr(type(value), "__len__") else None


def _held(value: Any, name: str, other: Any) -> Any:
    """An attribute, without running code of the user's."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return other


@functools.cache
def _slots(kind: type) -> tuple[str, ...]:
    """The attributes that objects of a class have places for."""
    found = []
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__"):
                hidden = name.startswith("__") and not name.endswith("__")
                found.append(f"_{base.__name__.lstrip('_')}{name}" if hidden else name)
    return tuple(found)


_POINTER = struct.calcsize("P")

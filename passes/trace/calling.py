"""How a model is called: which tensors of a call are which inputs of the graph.

What is no tensor (a flag, a string, None) is a constant of the trace: a call that gives another one is refused,
for the program computes what the example inputs asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn

from autopar.ir.errors import UsageError
from autopar.passes.trace.structure import Structure, tensor_names

Call: TypeAlias = "tuple[tuple[Any, ...], dict[str, Any]]"
TARGET = "target"


@dataclass(frozen=True)
class Entry:
    """One argument of the example call: how its tensors are nested, and their names as inputs of the graph."""

    structure: Structure
    inputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Calling:
    """``positional``: names of the arguments of forward in order; ``defaults``: of those that have one.

    ``count``: how many of the example's arguments are positional. With ``target`` the loss function's argument
    of that name comes after them.
    """

    positional: tuple[str, ...]
    entries: Mapping[str, Entry]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    count: int = 0
    target: bool = False

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The tensors of a call by the names of the graph's inputs. Raises UsageError for another call."""
        given = self._named(args, kwargs)
        tensors: dict[str, torch.Tensor] = {}
        for name, entry in self.entries.items():
            found, structure = Structure.of(given.get(name, self.defaults.get(name)))
            if name not in given and not (name in self.defaults and entry.structure.same(structure)):
                raise UsageError(f"input {name} is missing; the inputs are {', '.join(self.entries)}")
            if not entry.structure.same(structure):
                raise UsageError(
                    f"input {name}: given {structure.describe()}, the example inputs had {entry.structure.describe()}; "
                    f"what is no tensor is a constant of the program"
                )
            tensors.update(zip(entry.inputs, found, strict=True))
        return tensors

    def refill(self, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Mapping[str, Any]) -> Call:
        """The call with ``tensors``, by the names of the graph's inputs, in place of its own."""
        given = self._named(args, kwargs)
        made = {
            name: entry.structure.unflatten([tensors[item] for item in entry.inputs])
            for name, entry in self.entries.items() if name in given
        }  # fmt: skip
        names = list(given)
        placed = [made.get(name, given[name]) for name in names[: len(args)]]
        return tuple(placed), {name: made.get(name, given[name]) for name in names[len(args) :]}

    def of_batch(self, batch: Any) -> Call:
        """The call that a batch stands for: a tensor, a tuple of arguments with the target last, or a dict."""
        if isinstance(batch, Mapping):
            return (), dict(batch)
        given = (batch,) if isinstance(batch, torch.Tensor) else tuple(batch)
        if self.target and len(given) > 1:
            return given[:-1], {TARGET: given[-1]}
        return given, {}

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if self.target and TARGET not in kwargs and len(args) == self.count + 1 > 1:
            args, kwargs = args[:-1], {**kwargs, TARGET: args[-1]}
        if len(args) > len(self.positional):
            raise UsageError(f"{len(args)} positional inputs were given, the model takes {len(self.positional)}")
        given = dict(zip(self.positional, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise UsageError(f"{name} was given twice; the inputs are {', '.join(self.entries)}")
            given[name] = value
        for name, value in given.items():
            if name not in self.entries and not _same(value, self.defaults.get(name)):
                raise UsageError(f"{name} is not an input; the inputs are {', '.join(self.entries)}")
        return given


def calling(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, target: bool) -> Calling:
    """How the example call (args, kwargs) calls ``model``. Raises UsageError for too many arguments."""
    positional: list[str] = []
    defaults: dict[str, Any] = {}
    for name, parameter in inspect.signature(model.forward).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append(name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            positional += [f"{name}.{i}" for i in range(len(args) - len(positional))]
        if parameter.default is not parameter.empty:
            defaults[name] = parameter.default
    if len(args) > len(positional):
        raise UsageError(
            f"forward takes {len(positional)} positional arguments, example_inputs has {len(args)}"
        )
    named = {**dict(zip(positional, args, strict=False)), **kwargs}
    entries = {name: Entry(Structure.of(tree)[1], tuple(tensor_names({name: tree}))) for name, tree in named.items()}
    return Calling(
        positional=tuple(positional), entries=entries, defaults=defaults, count=len(args), target=target
    )


def _same(value: object, other: object) -> bool:
    return not isinstance(value, torch.Tensor) and (value is other or bool(value == other))

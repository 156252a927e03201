"""Nested arguments and outputs as a flat list of tensors, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree  # the registry of containers that torch.export uses

from autopar.ir.errors import UnsupportedError, UsageError


@dataclass(frozen=True)
class Structure:
    """How tensors are nested. ``statics`` holds the other leaves, and ``TENSOR`` where a tensor is."""

    spec: pytree.TreeSpec
    statics: tuple[Any, ...]

    TENSOR = "<tensor>"

    @classmethod
    def of(cls, tree: Any) -> tuple[list[torch.Tensor], Structure]:
        """The tensors of ``tree`` in order, and how to nest them again."""
        leaves, spec = pytree.tree_flatten(tree)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        statics = tuple(cls.TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        return tensors, cls(spec, statics)

    def refuse_hidden(self) -> None:
        """Raise UnsupportedError for an object that holds tensors and is not known how to be taken apart."""
        for static in self.statics:
            if dataclasses.is_dataclass(static) and any(isinstance(v, torch.Tensor) for v in vars(static).values()):
                name = type(static).__qualname__
                raise UnsupportedError(
                    f"the model returns a {name}, a dataclass that torch does not know: call "
                    f"torch.export.register_dataclass({name}) once before, or return a dict"
                )

    def unflatten(self, tensors: Iterable[Any]) -> Any:
        """The tree with ``tensors`` in place of its own."""
        rest = iter(tensors)
        leaves = [next(rest) if static is self.TENSOR else static for static in self.statics]
        return pytree.tree_unflatten(leaves, self.spec)

    def flatten_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call; UsageError if it is nested otherwise than the example was.

        Requires: this is the structure of (args, kwargs) of an example call.
        """
        example = self.unflatten([None] * len(self.statics))
        order = [name for name in example[1] if name in kwargs]
        order += [name for name in kwargs if name not in example[1]]
        tensors, given = Structure.of((tuple(args), {name: kwargs[name] for name in order}))
        if not self.same(given):
            raise UsageError(
                "the arguments are not those of the example inputs:\n"
                f"  given:   {given.describe()}\n  example: {self.describe()}"
            )
        return tensors

    def same(self, other: Structure) -> bool:
        return self.spec == other.spec and all(
            a is b or (a is not self.TENSOR and b is not self.TENSOR and bool(a == b))
            for a, b in zip(self.statics, other.statics, strict=True)
        )

    def is_plain(self) -> bool:
        """Whether all that is no tensor in it is a number, a text, a truth value or None."""
        return all(isinstance(static, (int, float, complex, str, bytes, type(None))) for static in self.statics)

    def describe(self) -> str:
        shown = repr(pytree.tree_unflatten(list(self.statics), self.spec))
        return shown.replace(repr(self.TENSOR), "tensor")


def tensor_names(named: Mapping[str, Any]) -> list[str]:
    """A name for each tensor of ``named`` in order: the key, then the path inside: ``past.0.key``."""
    names: list[str] = []
    for name, tree in named.items():
        try:
            paths = [
                (".".join([name, *(_step(key) for key in path)]), leaf)
                for path, leaf in pytree.tree_flatten_with_path(tree)[0]
            ]
        except ValueError:  # a container registered without key paths
            paths = [(f"{name}.{i}", leaf) for i, leaf in enumerate(pytree.tree_leaves(tree))]
        names += [path for path, leaf in paths if isinstance(leaf, torch.Tensor)]
    return names


def _step(key: object) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)

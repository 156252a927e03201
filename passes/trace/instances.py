"""The modules of a model that may be repeats of each other: one class, and the same kinds of tensors in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from autopar.passes.trace.tokens import Names, meta, state_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Instance:
    """A module with all that is in it.

    ``kind`` is equal for modules of one class with the same tree. ``modules`` maps paths inside it to modules.
    ``tensors`` are the canonical names of its parameters and buffers, in the order of the tree; ``tied`` those of them
    that other modules hold too.
    """

    path: str
    kind: int
    module: nn.Module
    modules: Mapping[str, nn.Module]
    tensors: tuple[str, ...]
    tied: frozenset[str]

    @cached_property
    def _paths(self) -> dict[int, str]:
        return {id(state_of(module)): path for path, module in self.modules.items()}

    def names(self, arguments: Sequence[torch.Tensor]) -> Names:
        """What its modules and tensors are called at this moment, in a call with ``arguments``."""
        return Names(
            modules=self._paths,
            tensors={id(tensor): name for name, tensor in _tensors(self.modules)},
            arguments={id(tensor): at for at, tensor in reversed(list(enumerate(arguments)))},
        )

    def storages(self) -> set[int]:
        """Identities of the memory of its tensors at this moment."""
        return {tensor.untyped_storage()._cdata for _, tensor in _tensors(self.modules)}

    def corresponds(self, other: Instance) -> bool:
        """Whether each tensor of this one stands for one of ``other``, and only for that.

        A tensor that is tied to another module's stands only for itself: what it is there is not known here.
        """
        pairs = set(zip(self.tensors, other.tensors, strict=True))
        one_to_one = len(pairs) == len({mine for mine, _ in pairs}) == len({theirs for _, theirs in pairs})
        return one_to_one and all(
            mine == theirs or not (mine in self.tied or theirs in other.tied) for mine, theirs in pairs
        )  # fmt: skip


def instances(model: nn.Module, canonical: Mapping[str, str]) -> dict[int, Instance]:
    """By identity of its state, every module of which there are several alike, but for single layers of torch's.

    ``canonical`` maps each name of a tensor of the model to its first name.
    """
    kinds: dict[Any, int] = {}
    kind_of: dict[int, int] = {}
    paths = {id(state_of(module)): (path, module) for path, module in model.named_modules()}
    for key, (_, module) in reversed(paths.items()):  # children come after their parents
        kind_of[key] = kinds.setdefault(_kind(module, kind_of), len(kinds))
    counts = Counter(kind_of.values())
    holders = Counter(canonical.values())
    found = {}
    for key, (path, module) in paths.items():
        if counts[kind_of[key]] > 1 and _is_traced_as_a_whole(module):
            modules = dict(module.named_modules(remove_duplicate=False))
            prefix = path + "." if path else ""
            names = tuple(canonical[prefix + name] for name, _ in _tensors(modules))
            within = Counter(names)
            found[key] = Instance(
                path=path, kind=kind_of[key], module=module, modules=modules, tensors=names,
                tied=frozenset(name for name in names if holders[name] > within[name]),
            )  # fmt: skip
    return found


def _kind(module: nn.Module, kind_of: Mapping[int, int]) -> Any:
    """Hashable; Requires: the kinds of its children are known, but for those of a cycle."""
    children = tuple(
        (name, None if child is None else kind_of.get(id(state_of(child)), id(child)))
        for name, child in module._modules.items()
    )
    tensors = tuple(
        (name, None if tensor is None else meta(tensor))
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
    )
    return type(module), module.training, children, tensors


def _is_traced_as_a_whole(module: nn.Module) -> bool:
    forward = next((vars(base)["forward"] for base in type(module).__mro__ if "forward" in vars(base)), None)
    own = callable(forward) and forward is not nn.Module.forward and "forward" not in vars(module)
    compiled = type(module).__module__.startswith(("torch._dynamo", "torch.jit", "torch.fx"))
    return own and not compiled and (bool(module._modules) or not type(module).__module__.startswith("torch.nn"))


def _tensors(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    for path, module in modules.items():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    yield f"{path}.{name}" if path else name, tensor

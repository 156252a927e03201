"""How the weights that transformers publishes and saves become those of its models.

transformers keeps experts, say, in one tensor a layer, and in files one by one. Its own tables of such changes, and its
own code for them, say what every tensor of a model is made of.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autopar.ir.errors import UnsupportedError
from autopar.runtime.origins import Origin, Origins, Parts, as_named


def origins_of(model: nn.Module) -> Origins:
    """What the tensors of ``model`` are made of in published files: of a model of transformers what that says, of
    others the tensors of the same names."""
    library = sys.modules.get("transformers.modeling_utils")  # without it the model is none of its own
    if library is None or not isinstance(model, library.PreTrainedModel):
        return as_named
    return _Origins(type(model), model.config)


@dataclass(frozen=True, eq=False)
class _Origins:
    """Of a class of transformers and its configuration; keeps none of the model's tensors."""

    kind: type[nn.Module]
    config: Any

    def __call__(self, files: Mapping[str, Tensor]) -> Sequence[Origin]:
        return list(self._found(files))

    def _found(self, files: Mapping[str, Tensor]) -> Iterator[Origin]:
        try:
            from transformers.conversion_mapping import get_model_conversion_mapping
            from transformers.core_model_loading import (
                WeightConverter,
                WeightRenaming,
                dot_natural_key,
                rename_source_key,
            )
        except ImportError as error:
            raise UnsupportedError(
                f"this version of transformers does not tell how files name tensors ({error}): use another"
            ) from None
        try:
            with torch.device("meta"):
                twin: Any = self.kind(self.config)
        except TypeError:  # a class of the user's that is made otherwise has names of its own
            yield from as_named(files)
            return
        own, prefix = twin.state_dict(), twin.base_model_prefix
        changes = get_model_conversion_mapping(twin)
        renamings = [each for each in changes if isinstance(each, WeightRenaming)]
        converters = [each for each in changes if isinstance(each, WeightConverter)]
        by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
        gathered: dict[str, tuple[Any, dict[str, list[str]]]] = {}
        for name in sorted(files, key=dot_natural_key):
            target, pattern = rename_source_key(name, renamings, converters, prefix, own)
            if target not in own and name in own:
                target, pattern = name, None
            if pattern is not None and target in own:
                converter, sources = gathered.setdefault(target, (by_pattern[pattern], {}))
                sources.setdefault(pattern, []).append(name)
            elif target in own or not self._ignored(twin, name):
                yield Origin(names=(target,), sources={name: (name,)})
        for target, (converter, sources) in gathered.items():
            yield _Converted(twin, converter, target).origin({p: tuple(names) for p, names in sources.items()}, files)

    @staticmethod
    def _ignored(twin: Any, name: str) -> bool:
        """Whether the model's class says that files may have more than it takes, such as heads that it does without."""
        return any(re.search(pattern, name) for pattern in twin._keys_to_ignore_on_load_unexpected or ())


@dataclass(frozen=True, eq=False)
class _Converted:
    twin: Any
    converter: Any
    target: str

    def make(self, parts: Parts) -> dict[str, Tensor]:
        converter = copy.deepcopy(self.converter)
        for pattern, tensors in parts.items():
            for tensor in tensors:
                converter.add_tensor(self.target, pattern, pattern, tensor)
        made = converter.convert(self.target, model=self.twin, config=self.twin.config)
        if isinstance(made, tuple):  # of transformers 5.0, with what went wrong beside it
            made, _ = made
        return {name: each[0] if isinstance(each, list) else each for name, each in made.items()}

    def origin(self, sources: Mapping[str, tuple[str, ...]], files: Mapping[str, Tensor]) -> Origin:
        parts = {pattern: [files[name] for name in names] for pattern, names in sources.items()}
        try:
            made = self.make(parts)
        except Exception:  # noqa: BLE001 — told by whoever makes it again
            made = {self.target: torch.empty(0, device="meta")}
        rows = {len(names) for names in sources.values()}
        by_row = _by_row(self.converter.operations) and all(rows == {each.shape[:1].numel()} for each in made.values())
        return Origin(names=tuple(made), sources=sources, make=self.make, by_row=by_row)


def _by_row(operations: Sequence[Any]) -> bool:
    """Whether sources are stacked, and nothing after that mixes what came of one with what came of another."""
    first, *others = operations
    return type(first).__name__ == "MergeModulelist" and first.dim == 0 and all(map(_inside_rows, others))


def _inside_rows(operation: Any) -> bool:
    match type(operation).__name__:
        case "Concatenate" | "Chunk" | "Interleave":
            return bool(operation.dim > 0)
        case "Transpose":
            return bool(min(operation.dim0, operation.dim1) > 0)
        case _:
            return False

"""Checkpoints of a run that every layout and every number of processes can go on from.

Each rank writes and reads only what it holds, with ``torch.distributed.checkpoint``. The entries are those of torch's
own ``get_state_dict``: ``model`` by original name, ``optimizer`` by names of parameters; so torch's tools know them.
"""

from __future__ import annotations

import io
import os
import warnings
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map  # nested containers of an optimizer's state

from autopar.ir.errors import MismatchError, UnsupportedError, UsageError
from autopar.runtime.checkpoint_folder import Folder, tree
from autopar.runtime.held import held_by_name, same_kind
from autopar.runtime.module import ParallelModule
from autopar.runtime.published import Published
from autopar.runtime.restart import (
    STEP,
    bounds,
    empty_like,
    groups_of,
    load_full_optimizer_state,
    same_groups,
)
from autopar.runtime.torch_private import chunks

MODEL, OPTIMIZER, TRAINING, EXTRA = "model", "optimizer", "training", "extra"
STATE, GROUPS = "state", "param_groups"

# What torch reads again without running code.
DATA = (Tensor, nn.Parameter, bool, int, float, complex, str, bytes, torch.dtype, torch.Size, torch.device)


def save(
    model: ParallelModule, optimizer: torch.optim.Optimizer | None, path: str | os.PathLike[str], *, extra: Any = None
) -> None:
    """Write a checkpoint into the folder ``path``: parameters, buffers, optimizer, loss scale, random numbers.

    A collective of all ranks, which share the filesystem. A checkpoint that stands there is replaced when the new one
    is whole. ``optimizer``: None leaves it out, as does a rank whose stage trains nothing. ``extra``: whatever else a
    run goes on with, such as a scheduler's state; rank 0's is kept. Raises UsageError where ``path`` is something else
    or cannot be written, UnsupportedError for optimizers that keep state of a part of a parameter.
    """
    _refuse_other(model, "save")
    folder = _agreed(model, optimizer, path, "save")
    written = model._unanimous.run(lambda: _as_bytes(extra))
    model._release()
    names = _names(model)
    tensors = model.state_dict()
    state: dict[str, Any] = {MODEL: tensors, TRAINING: model.training_state_dict()}

    def checked() -> dict[str, Any] | None:
        _known_to_torch(tensors)
        return None if optimizer is None else _optimizer_state(names, optimizer)

    held = model._unanimous.run(checked)
    groups = model._groups_everywhere(None if held is None else held[GROUPS])
    if groups is not None:
        state[OPTIMIZER] = {STATE: {} if held is None else held[STATE], GROUPS: groups}
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        state[EXTRA] = written

    def write(at: Path) -> None:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                writer, group = FileSystemWriter(at), model._unanimous.group
                state_dict_saver.save(state, storage_writer=writer, process_group=group)
        except CheckpointException as error:
            rank, (first, _) = next(iter(sorted(error.failures.items())))
            raise UsageError(f"{folder.path} cannot be written: rank {rank}: {first}") from None

    folder.written(write, model._unanimous)


def load(model: ParallelModule, optimizer: torch.optim.Optimizer | None, path: str | os.PathLike[str]) -> Any:
    """Continue from a checkpoint, at whatever plan and number of processes it was saved; returns its ``extra``.

    A collective of all ranks. ``optimizer``: of the same groups of parameters as the one saved; None leaves it out.
    Raises FileFormatError where ``path`` is no whole checkpoint, and MismatchError where it is none of this model, or
    of this optimizer: both before anything has changed, on all ranks if on one.
    """
    _refuse_other(model, "load")
    folder = _agreed(model, optimizer, path, "load")
    found = model._unanimous.run(lambda: _found(folder, model, optimizer))
    model._release()
    return model._unanimous.run(found.take)


def _found(
    folder: Folder, model: ParallelModule, optimizer: torch.optim.Optimizer | None
) -> _Checkpoint | Published:
    if not folder.pretrained:
        return _Checkpoint(folder, model, optimizer)
    if optimizer is not None:
        raise MismatchError(f"{folder.path} has no optimizer: give None to leave it out")
    return Published(folder, model)


def _refuse_other(model: object, call: str) -> None:
    if not isinstance(model, ParallelModule):
        raise UsageError(f"{call}: {type(model).__name__} is no ParallelModule: give what autopar.parallelize returned")


def _agreed(
    model: ParallelModule, optimizer: object, path: object, call: str
) -> Folder:
    """The folder, if all ranks name it and all that hold trained parameters give an optimizer, or none does."""
    folder = model._unanimous.run(lambda: Folder.of(path))

    def checked() -> None:
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError(f"{call}: {type(optimizer).__name__} is no optimizer of torch")
        if torch.is_inference_mode_enabled():
            raise UsageError(f"{call} within torch.inference_mode(): its tensors keep no versions; use torch.no_grad()")

    trains = any(parameter.requires_grad for parameter in model.parameters())
    given = type(optimizer).__name__ if optimizer is not None else "no optimizer"
    model._unanimous.run(checked, f"{call}({str(folder.path)!r})")
    everywhere = model._places([given] if optimizer is not None or trains else [])
    kinds = sorted({kind for place in everywhere for kind in place})
    text = kinds[0] if len(kinds) == 1 else ", ".join(kinds) or given
    model._unanimous.run(lambda: _refuse_several(call, kinds), f"{call} with {text}")
    return folder


def _refuse_several(call: str, kinds: list[str]) -> None:
    if len(kinds) > 1:
        raise UsageError(f"{call}: places of the pipeline give {', '.join(kinds)}: all that train give the same")


class _Checkpoint:
    """What a rank takes from a checkpoint. Making one checks that it fits."""

    def __init__(
        self, folder: Folder, model: ParallelModule, optimizer: torch.optim.Optimizer | None
    ) -> None:
        self._folder, self._model, self._optimizer = folder, model, optimizer
        self._metadata = folder.metadata()
        self._tree = tree(self._metadata)
        self._names = _names(model)
        self._held = self._tensors()
        self._few = self._read({OPTIMIZER: {} if optimizer is None else {GROUPS: self._groups()}, **self._ours()})
        self._extra = _from_bytes(self._few.get(EXTRA))
        if optimizer is not None:
            self._states = self._optimizer_states(optimizer)

    def take(self) -> Any:
        """Load it; returns what was saved besides."""
        wanted: dict[str, Any] = {MODEL: self._held}
        if self._optimizer is not None:
            wanted[OPTIMIZER] = {STATE: self._states}
        self._read(wanted)
        if self._optimizer is not None:
            groups = self._few[OPTIMIZER][GROUPS]
            state = {STATE: wanted[OPTIMIZER][STATE], GROUPS: groups}
            load_full_optimizer_state(self._names, self._optimizer, state, self._model._elsewhere)
        if TRAINING in self._few:
            self._model.load_training_state_dict(self._few[TRAINING])
        return self._extra

    def _ours(self) -> dict[str, Any]:
        """What only our own checkpoints have; entries of others that happen to have such names are left alone."""
        mine, theirs = self._model.training_state_dict(), self._tree.get(TRAINING)
        found: dict[str, Any] = {}
        if isinstance(theirs, dict) and mine.keys() == theirs.keys():
            found = {TRAINING: self._like(TRAINING)}
            entry = self._tree.get(EXTRA)
            if isinstance(self._metadata.state_dict_metadata.get(str(entry)), BytesStorageMetadata):
                found[EXTRA] = None
        return found

    def _read(self, wanted: dict[str, Any]) -> dict[str, Any]:
        self._folder.read(wanted)
        return wanted

    def _tensors(self) -> dict[str, Tensor]:
        """Those of the model by a name that the checkpoint has."""
        held = self._model.state_dict(keep_vars=True)
        there = self._tree.get(MODEL, {})
        found = held_by_name(held, there, self._model._elsewhere, self._folder.path)
        _known_to_torch(held)
        for name, tensor in found.items():
            self._same_kind(there[name], name, tensor)
        return {name: tensor.detach() for name, tensor in found.items()}

    def _same_kind(self, entry: Any, name: str, held: Tensor) -> None:
        kept = self._metadata.state_dict_metadata.get(entry) if isinstance(entry, str) else None
        if not isinstance(kept, TensorStorageMetadata):
            raise MismatchError(f"{name} is no tensor in {self._folder.path}, {list(held.shape)} in the model")
        same_kind(name, kept.size, kept.properties.dtype, held, self._folder.path)

    def _groups(self) -> Any:
        found = self._like(OPTIMIZER, GROUPS)
        if not isinstance(found, list) or not all(isinstance(group, dict) and "params" in group for group in found):
            raise MismatchError(f"{self._folder.path} has no optimizer: give None to leave it out")
        assert self._optimizer is not None
        for name, default in self._optimizer.defaults.items():
            # Switches come with new versions of torch; what has a value tells optimizers apart.
            if default is not None and not isinstance(default, bool) and any(name not in group for group in found):
                raise MismatchError(f"{self._folder.path} is of another optimizer: its groups have no {name!r}")
        return found

    def _optimizer_states(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """To be filled: laid out as the parameters are."""
        try:
            same_groups(self._names, optimizer, self._few[OPTIMIZER][GROUPS], self._model._elsewhere)
        except UsageError as error:
            raise MismatchError(f"{self._folder.path}: {error}") from None
        trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        states = {
            name: self._like(OPTIMIZER, STATE, name, parameter=parameter)
            for parameter, name in self._names.items() if parameter in trained
        }  # fmt: skip
        return {name: state for name, state in states.items() if state}

    def _like(self, *path: str, parameter: nn.Parameter | None = None) -> Any:
        """What the checkpoint has under ``path``, with room for tensors: on the parameter's device, or the CPU."""
        at: Any = self._tree
        for key in path:
            at = at.get(key, {})
        return self._room(at, path[-1], parameter)

    def _room(self, at: Any, key: Any, parameter: nn.Parameter | None) -> Any:
        if isinstance(at, dict):
            inside = {key: self._room(value, key, parameter) for key, value in at.items()}
            numbered = inside and all(isinstance(key, int) for key in inside)
            return [inside[number] for number in sorted(inside)] if numbered else inside
        kept = self._metadata.state_dict_metadata[at]
        if isinstance(kept, BytesStorageMetadata):
            return None
        if parameter is None or key == STEP:
            return torch.empty(kept.size, dtype=kept.properties.dtype)
        dtype = kept.properties.dtype
        if dtype.is_floating_point and kept.size == parameter.shape and dtype == self._stored_dtype(parameter):
            dtype = parameter.dtype  # as the parameter itself, which may be of another precision here
        return empty_like(parameter, kept.size, dtype, str(key))

    def _stored_dtype(self, parameter: nn.Parameter) -> torch.dtype | None:
        kept = self._metadata.state_dict_metadata.get(str(self._tree.get(MODEL, {}).get(self._names[parameter])))
        return kept.properties.dtype if isinstance(kept, TensorStorageMetadata) else None


def _as_bytes(extra: Any) -> io.BytesIO:
    """Raises UsageError for what is not data: code is never read from it."""
    try:
        _only_data(extra, EXTRA)
    except RecursionError:
        raise UsageError("extra is nested too deeply to be saved, or in itself") from None
    made = io.BytesIO()
    torch.save(extra, made)
    return made


def _only_data(value: Any, where: str) -> None:
    if type(value) in (dict, OrderedDict, Counter):
        for key, inside in value.items():
            _only_data(key, f"a key of {where}")
            _only_data(inside, f"{where}[{key!r}]")
    elif type(value) in (list, tuple, set):
        for inside in value:
            _only_data(inside, f"an entry of {where}")
    elif value is not None and type(value) not in DATA:
        kind = type(value)
        raise UsageError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}: only tensors, numbers and strings can be saved, and "
            "lists, tuples, sets and dicts of them"
        )


def _from_bytes(data: io.BytesIO | None) -> Any:
    if data is None:
        return None
    data.seek(0)
    return torch.load(data, weights_only=True, map_location="cpu")


def _names(model: ParallelModule) -> dict[nn.Parameter, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


def _known_to_torch(tensors: Mapping[str, Tensor]) -> None:
    """Raise UnsupportedError where torch takes a part for another one: what is cut twice and unevenly, say."""
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            ours, theirs = bounds(tensor.shape, tensor), chunks(tensor)
            if all(size for _, size in ours) and theirs != [ours]:
                raise UnsupportedError(
                    f"{name} {list(tensor.shape)} is laid out {tensor.placements}, of which torch {torch.__version__} "
                    "knows no part in a checkpoint: use another ZeRO level or mesh, or a newer torch"
                )


def _optimizer_state(names: Mapping[nn.Parameter, str], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state by names, in this rank's layout."""
    groups = groups_of(names, optimizer)
    state: dict[str, Any] = {}
    for parameter, name in names.items():
        if parameter in optimizer.state:
            state[name] = {
                key: tree_map(lambda v, k=key, p=parameter, n=name: _storable(v, p, f"{n}: {k}"), value)
                for key, value in optimizer.state[parameter].items()
            }
    return {STATE: state, GROUPS: groups}


def _storable(value: Any, parameter: nn.Parameter, what: str) -> Any:
    """Raises UnsupportedError for what no layout can tell the whole of."""
    partial = isinstance(value, DTensor) and any(placement.is_partial() for placement in value.placements)
    plain = isinstance(value, Tensor) and not isinstance(value, DTensor) and value.dim() > 0
    cut = isinstance(parameter, DTensor) and parameter.to_local().shape != parameter.shape
    if partial or (plain and cut):
        raise UnsupportedError(
            f"{what} of the optimizer is {'a sum in parts' if partial else 'a plain tensor'}, which may be of this "
            "rank's part of the parameter alone: only state that is laid out as its parameter can be saved"
        )
    return value.detach() if isinstance(value, Tensor) else value

"""State of a run as whole tensors and plain numbers, which any layout of the same model can continue from.

The form of the optimizer's state is that of ``torch.distributed.checkpoint.state_dict`` with
``full_state_dict=True``: names instead of numbers, so that a model on one device reads it with torch's own
``set_optimizer_state_dict``. Groups of parameters are told apart by their order, which torch's functions forget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._pytree import tree_map  # nested containers of an optimizer's state

from autopar.ir.errors import UsageError
from autopar.runtime.dtensors import gathered

# The entry that torch's optimizers keep on the CPU unless they are fused or capturable.
STEP = "step"
# Entries of torch's optimizers that are plain numbers even where the parameter is a single number, too.
NUMBERS = (STEP, "mu_product", "mu", "eta")


def bounds(shape: Sequence[int], like: DTensor) -> list[tuple[int, int]]:
    """Where this device's part of a whole of ``shape`` begins in each dim, and how much it is, laid out like ``like``.

    What FSDP2 cut, it cut out of what another axis had cut before.
    """
    mesh, coordinate = like.device_mesh, like.device_mesh.get_coordinate()
    assert coordinate is not None
    found = [(0, extent) for extent in shape]
    plain = [type(placement) is Shard for placement in like.placements]
    for at in sorted(range(len(plain)), key=lambda index: (not plain[index], index)):
        placement = like.placements[at]
        if not isinstance(placement, Replicate):
            dim = int(placement.dim)  # type: ignore[attr-defined]  # Shard, or FSDP2's private kind of it
            start, extent = found[dim]
            size = -(-extent // mesh.size(at))
            before = min(coordinate[at] * size, extent)
            found[dim] = start + before, min(size, extent - before)
    return found


def cut(whole: Tensor, like: DTensor, first: int = 0) -> Tensor:
    """This device's part of a whole tensor that is laid out like ``like``: the inverse of ``gathered``.

    ``first``: dims before this one are cut already.
    """
    for dim, (start, size) in list(enumerate(bounds(like.shape, like)))[first:]:
        whole = whole.narrow(dim, start, size)
    return whole


def empty_like(like: Tensor, shape: Sequence[int], dtype: torch.dtype, key: str = "") -> Tensor:
    """Room for an optimizer's entry ``key`` of ``like``, a parameter: in its layout if it has its shape, else whole."""
    number = not len(shape) and (len(like.shape) > 0 or key in NUMBERS)
    if not isinstance(like, DTensor) or number:
        return torch.empty(shape, dtype=dtype, device=like.device)
    same = tuple(shape) == like.shape
    placements = like.placements if same else [Replicate()] * like.device_mesh.ndim
    part = torch.empty(like.to_local().shape if same else shape, dtype=dtype, device=like.device)
    return DTensor.from_local(
        part, like.device_mesh, placements, run_check=False, shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    )  # fmt: skip


def laid_out(tensor: Tensor, like: Tensor, key: str = "") -> Tensor:
    """A whole tensor in a layout for ``like``, in memory of its own; a DTensor as it is."""
    if isinstance(tensor, DTensor):
        return tensor
    room = empty_like(like, tensor.shape, tensor.dtype, key)
    with torch.no_grad():
        if isinstance(room, DTensor):
            room.to_local().copy_(cut(tensor, room))
        else:
            room.copy_(tensor)
    return room


def load_tensors(
    held: Mapping[str, Tensor], state: Mapping[str, Tensor], elsewhere: Iterable[str], *, strict: bool
) -> None:
    """Copy whole tensors into those of this device. A tensor with two names is given under either.

    ``elsewhere``: names that other ranks may hold, which mean nothing here.
    Raises UsageError, before anything changes, for shapes that differ, and with ``strict`` for names.
    """
    given = {id(held[name]) for name in state if name in held}
    missing = [name for name, tensor in held.items() if id(tensor) not in given]
    others = frozenset(elsewhere)
    unexpected = [name for name in state if name not in held and name not in others]
    if strict and (missing or unexpected):
        raise UsageError(
            f"the state is not that of this model: missing {listed(missing)}; unexpected {listed(unexpected)}"
        )
    for name, tensor in state.items():
        if name in held and tensor.shape != held[name].shape:
            theirs, ours = list(tensor.shape), list(held[name].shape)
            raise UsageError(f"{name} has shape {theirs} in the state, {ours} in the model")
    with torch.no_grad():
        for name, tensor in state.items():
            if name in held:
                mine = held[name].detach()
                whole = gathered(tensor)
                if isinstance(mine, DTensor):
                    mine.to_local().copy_(cut(whole, mine))
                else:
                    mine.copy_(whole)


def full_optimizer_state(names: Mapping[nn.Parameter, str], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state by names, whole, in memory of its own. A collective of all ranks."""

    ordered = [parameter for parameter in names if parameter in optimizer.state]
    return {
        "state": {names[p]: {key: tree_map(_whole, v) for key, v in optimizer.state[p].items()} for p in ordered},
        "param_groups": groups_of(names, optimizer),
    }  # fmt: skip


def _whole(value: Any) -> Any:
    return gathered(value).detach().clone() if isinstance(value, Tensor) else value


def groups_of(names: Mapping[nn.Parameter, str], optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The optimizer's groups, with names for parameters. Raises UsageError where one is not among ``names``."""
    if any(parameter not in names for group in optimizer.param_groups for parameter in group["params"]):
        raise UsageError("the optimizer has a parameter that is not this model's; make it from model.parameters()")
    return [
        {
            **{key: _whole(value) for key, value in group.items() if key not in ("params", "param_names")},
            "params": [names[p] for p in group["params"]],
        }
        for group in optimizer.param_groups
    ]


def joined(states: Sequence[Mapping[str, Any]], order: Sequence[str]) -> dict[str, Any]:
    """One state from those of the places of a pipeline; what several hold is the first's."""
    merged: dict[str, Any] = {}
    for state in reversed(states):
        merged.update(state["state"])
    groups = joined_groups([state["param_groups"] for state in states], order)
    return {"state": {name: merged[name] for name in order if name in merged}, "param_groups": groups}


def joined_groups(places: Sequence[Sequence[Mapping[str, Any]]], order: Sequence[str]) -> list[dict[str, Any]]:
    """The groups of one optimizer from those of the places of a pipeline.

    Raises UsageError where these differ in more than their parameters: that of one device could not.
    """
    options = [[{k: v for k, v in group.items() if k != "params"} for group in place] for place in places]
    for number, other in enumerate(options):
        if len(other) != len(options[0]) or not all(map(_equal, options[0], other)):
            raise UsageError(
                f"the optimizer of pipeline place {number} has {len(other)} groups, that of place 0 "
                f"{len(options[0])}, or their options differ: give each place the same groups, empty ones too"
            )
    groups = []
    for parts in zip(*places, strict=True):
        held = {name for part in parts for name in part["params"]}
        groups.append({**parts[0], "params": [name for name in order if name in held]})
    return groups


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one.cpu(), other.cpu())
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return bool(one == other)


def same_groups(
    names: Mapping[nn.Parameter, str], optimizer: torch.optim.Optimizer, saved: Sequence[Mapping[str, Any]],
    elsewhere: Iterable[str],
) -> None:  # fmt: skip
    """Raise UsageError unless the optimizer has the groups that were saved, but for names ``elsewhere``."""
    others = frozenset(elsewhere) - frozenset(names.values())
    groups = [group["params"] for group in groups_of(names, optimizer)]
    wanted = [[name for name in group["params"] if name not in others] for group in saved]
    if [sorted(group) for group in groups] != [sorted(map(str, group)) for group in wanted]:
        ours, theirs = _flat(groups), _flat(wanted)
        raise UsageError(
            "the optimizer's groups are not those of the state: "
            f"only here {listed(n for n in ours if n not in theirs)}; only there "
            f"{listed(n for n in theirs if n not in ours)}; {len(groups)} groups here, {len(wanted)} there"
        )


def load_full_optimizer_state(
    names: Mapping[nn.Parameter, str], optimizer: torch.optim.Optimizer, state: Mapping[str, Any],
    elsewhere: Iterable[str] = (),
) -> None:  # fmt: skip
    """Give ``optimizer`` a state of the same groups of names. Raises UsageError, before anything changes.

    ``elsewhere``: names of parameters that other ranks may hold.
    """
    same_groups(names, optimizer, state["param_groups"], elsewhere)
    for group, values in zip(optimizer.param_groups, state["param_groups"], strict=True):
        group.update({key: value for key, value in values.items() if key not in ("params", "param_names")})
        on_device = bool(group.get("fused") or group.get("capturable"))
        for parameter in group["params"]:
            optimizer.state.pop(parameter, None)
            found = state["state"].get(names[parameter])
            if found is not None:
                optimizer.state[parameter] = {
                    key: _counter(v, parameter, on_device) if key == STEP else tree_map(_like(parameter, key), v)
                    for key, v in found.items()
                }


def _counter(value: Any, parameter: nn.Parameter, on_device: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(parameter.device if on_device else "cpu", copy=True)


def _like(parameter: nn.Parameter, key: str) -> Callable[[Any], Any]:
    return lambda value: laid_out(value, parameter, key) if isinstance(value, Tensor) else value


def _flat(groups: Sequence[Sequence[str]]) -> list[str]:
    return [name for group in groups for name in group]


def listed(names: Iterable[str]) -> str:
    found = [str(name) for name in names]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return (", ".join(found[:3]) or "nothing") + more

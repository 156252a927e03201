"""Whether a forward does the same in its next call, as a program does.

Where a call leaves other numbers or tensors on modules, or draws random numbers of Python or numpy, two calls are
traced into one program, which ``twice.py`` compares; but for plain data that a call sets before it reads it.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, NoneType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram

from autopar.ir.errors import UnsupportedError
from autopar.passes.trace.reads import accesses, by_user, is_ours
from autopar.passes.trace.tokens import is_plain, state_of
from autopar.passes.trace.twice import alike

DRAWS = "random numbers of Python or numpy"
_EXTREME = 0.01  # so near to the ends of their range are the first numbers drawn: on either side of most shares
_NAMED = 3
_OF_LOSS = "loss_fn"
_DEEP = 4  # containers in containers that are looked into
# What torch and transformers keep of their own: that parameters lie together; that hooks are there, once they are.
_THEIRS = ("_flat_weights", "_flat_weight_refs", "_forward_hooks", "_output_capturing_hooks_installed")
_TABLES = frozenset(("_parameters", "_buffers", "_modules", *_THEIRS))
_PLAIN = (bool, NoneType, int, float, str, np.generic)


@contextmanager
def watched(model: nn.Module, loss_fn: object, left: dict[str, bool]) -> Iterator[None]:
    """Around a call: into ``left`` goes what it changes on modules, by name, and whether it ``DRAWS``, which is undone;
    of each whether it is plain data now.

    torch.export puts attributes back. Buffers of a model may change; a loss function has none.
    """
    if torch.compiler.is_dynamo_compiling():
        yield
        return
    tables = [(path, vars(module)) for path, module in model.named_modules()]
    if isinstance(loss_fn, nn.Module):
        of_loss = list(loss_fn.named_modules(prefix=_OF_LOSS))
        tables += [(path, table) for path, module in of_loss for table in (vars(module), module._buffers)]
    before = [{name: _told(value) for name, value in held.items() if name not in _TABLES} for _, held in tables]
    state = _state()
    try:
        yield
        drawn = _state() != state
    finally:
        _put_back(state)
    for (path, held), known in zip(tables, before, strict=True):
        for name, value in held.items():
            if name not in _TABLES and known.get(name) != _told(value):
                left[f"{path}.{name}".lstrip(".")] = is_plain(value)
    if drawn:
        left[DRAWS] = False


@contextmanager
def set_first(model: nn.Module, names: dict[str, None]) -> Iterator[None]:
    """Around a call: what stays in ``names`` it did not set, or not before it read it."""
    modules, not_seen = dict(model.named_modules()), {}
    for full in names:
        path, _, name = full.rpartition(".")
        if path in modules and path.partition(".")[0] != _OF_LOSS:
            not_seen[id(state_of(modules[path])), name] = full

    def reading(module: nn.Module, name: str) -> None:
        not_seen.pop((id(state_of(module)), name), None)
        if name == "__dict__" and by_user():
            for key in [key for key in not_seen if key[0] == id(state_of(module))]:
                del not_seen[key]

    def setting(module: nn.Module, name: str, value: object) -> None:
        names.pop(not_seen.pop((id(state_of(module)), name), ""), None)

    with accesses(reading, setting, reading):
        yield


def refuse_unsteady(
    left: Mapping[str, bool], unset: Callable[[], Collection[str]], twice: Callable[[], ExportedProgram]
) -> None:
    """Raise UnsupportedError where results depend on what is ``left`` from call to call.

    ``unset``: what of it a call does not set before it reads it. ``twice``: the program of two calls, which returns the
    results of both. Where there is none nothing is said.
    """
    if all(left.values()) and (not left or not unset()):
        return
    try:
        program = twice()
    except Exception:  # noqa: BLE001 - of a user's forward, which did not fail in one call
        return
    if not alike(program):
        names = [name for name in left if name != DRAWS]
        does = [f"changes {', '.join(names[:_NAMED])}"] * bool(names) + [f"draws {DRAWS}"] * (DRAWS in left)
        raise UnsupportedError(
            f"the forward {' and '.join(does)}, and its next call has other results for it, but a program does the "
            "same in every step. Keep what changes in buffers of the model, written in place; draw with torch.rand"
        )


@contextmanager
def seeded(low: bool) -> Iterator[None]:
    """Inside, the first random numbers of Python and of numpy are nearly 0, or nearly 1."""
    least = 0.0 if low else 1.0 - _EXTREME
    seeds = itertools.count()
    state = _state()
    random.seed(next(seed for seed in seeds if least <= random.Random(seed).random() < least + _EXTREME))
    draws: Callable[[int], float] = lambda seed: np.random.RandomState(seed).random_sample()  # noqa: E731
    np.random.seed(next(seed for seed in seeds if least <= draws(seed) < least + _EXTREME))
    try:
        yield
    finally:
        _put_back(state)


def _told(value: Any, deep: int = _DEEP) -> object:
    """What tells whether an attribute is another one: a number's value, what is in a container, else which it is. What
    a trace put there is none."""
    if isinstance(value, _PLAIN):  # first: most of what a module has
        return type(value), value
    if isinstance(value, FunctionType) and is_ours(value.__code__.co_filename):
        return None
    if deep and isinstance(value, dict):
        return id(value), tuple((id(key), _told(held, deep - 1)) for key, held in value.items())
    if deep and isinstance(value, (list, tuple, set, deque)):
        return type(value), tuple(_told(held, deep - 1) for held in value)
    return (id(value), value._version) if isinstance(value, torch.Tensor) else id(value)


def _state() -> tuple[Any, ...]:
    """Of both generators, to be compared and put back."""
    name, keys, *others = np.random.get_state()
    return random.getstate(), (name, tuple(keys), *others)


def _put_back(state: tuple[Any, ...]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])

"""Whether a forward does the same in its next call, as a program does.

Where it leaves other numbers or tensors on modules, or draws random numbers of Python or numpy, two calls are traced,
one after the other: the results of the second are to follow from inputs and parameters as those of the first do.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from autopar.ir.errors import UnsupportedError

DRAWS = "random numbers of Python or numpy"
_EXTREME = 0.01  # so near to the ends of their range are the first numbers drawn: on either side of most shares
_NAMED = 3
_OWN = ("_parameters", "_buffers", "_modules")


@contextmanager
def watched(model: nn.Module, left: dict[str, None]) -> Iterator[None]:
    """Around a call of the model: into ``left`` goes what it changes on modules, by name, and whether it ``DRAWS``,
    which is undone. torch.export puts attributes back."""
    if torch.compiler.is_dynamo_compiling():
        yield
        return
    modules = {path: vars(module) for path, module in model.named_modules()}
    before = {path: {name: _told(value) for name, value in held.items()} for path, held in modules.items()}
    state = _state()
    try:
        yield
        drawn = _state() != state
    finally:
        _put_back(state)
    for path, held in modules.items():
        for name, value in held.items():
            if name not in _OWN and before[path].get(name) != _told(value):
                left[f"{path}.{name}".lstrip(".")] = None
    if drawn:
        left[DRAWS] = None


def refuse_unsteady(left: Mapping[str, None], twice: Callable[[], ExportedProgram]) -> None:
    """Raise UnsupportedError where results depend on what is ``left`` from call to call.

    ``twice``: the program of two calls, which returns the results of both.
    """
    if not left:
        return
    try:
        program = twice()
    except Exception:  # noqa: BLE001 - of a user's forward, which did not fail in one call
        return
    if not _alike(program):
        names = [name for name in left if name != DRAWS]
        does = [f"changes {', '.join(names[:_NAMED])}"] * bool(names) + [f"draws {DRAWS}"] * (DRAWS in left)
        raise UnsupportedError(
            f"the forward {' and '.join(does)}, and its next call has other results for it, but a program does the "
            "same in every step. Keep what changes in buffers, written in place; draw with torch.rand"
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


def _told(value: object) -> object:
    """What tells whether an attribute is another one: a number's value, what is in a container, else which it is."""
    if isinstance(value, (bool, int, float, str)):
        return type(value), value
    if type(value) in (list, set):
        return id(value), tuple(map(id, value))  # type: ignore[call-overload]
    if type(value) is dict:
        return id(value), tuple((id(key), id(held)) for key, held in value.items())
    return id(value) if isinstance(value, torch.Tensor) else type(value)


def _state() -> tuple[Any, ...]:
    """Of both generators, to be compared and put back."""
    name, keys, *others = np.random.get_state()
    return random.getstate(), (name, tuple(keys), *others)


def _put_back(state: tuple[Any, ...]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])


def _alike(program: ExportedProgram) -> bool:
    """Whether the first half of the results is computed as the second is."""
    given: list[object] = []
    for spec in program.graph_signature.input_specs:
        held = program.constants.get(spec.target or "") if spec.kind == InputKind.CONSTANT_TENSOR else None
        real = type(held) is torch.Tensor and not held.is_meta
        given.append((held.dtype, held.tolist()) if real and held is not None else spec.target or spec.arg)
    results = _computed(program.graph_module, given, {})
    return results[: len(results) // 2] == results[len(results) // 2 :]


def _computed(module: torch.fx.GraphModule, given: Sequence[object], numbers: dict[str, int]) -> Sequence[Any]:
    """The results with a number for each value, the same for what is computed alike from what is ``given``."""
    known: dict[torch.fx.Node, int] = {}
    left = iter(given)
    for node in module.graph.nodes:
        if node.op == "output":
            return [torch.fx.map_arg(result, known.__getitem__) for result in node.args[0]]
        of: object = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
        if node.op == "placeholder":
            of = next(left)
        elif node.op == "get_attr":
            part = getattr(module, node.target)
            parts = isinstance(part, torch.fx.GraphModule)
            of = _computed(part, range(len(part.graph.nodes)), numbers) if parts else node.target
        elif _is_itself(node):
            known[node] = known[node.args[0]]
            continue
        else:
            of = node.target, of
        known[node] = numbers.setdefault(repr((node.op, of)), len(numbers))
    return ()


def _is_itself(node: torch.fx.Node) -> bool:
    """Whether it is a conversion to what its operand is already: the one object, so that later uses name either."""
    if getattr(node.target, "overloadpacket", None) not in (torch.ops.aten.to, torch.ops.aten.contiguous):
        return False
    new, old = (each.meta.get("val") for each in (node, node.args[0]))  # type: ignore[union-attr]
    return new is not None and old is not None and (new.dtype, new.device) == (old.dtype, old.device)

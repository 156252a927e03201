"""Repeated modules are traced once: a later call that would read the same leaves one node in the trace.

While the trace runs, the forwards of classes that occur more than once are wrapped. A call either *leads*: it runs,
between two marks in the graph, and what it reads is recorded. Or it *repeats* a leader whose reads and arguments
are the same to it: then the node ``repeat(site, call, tensors)`` stands for all that the leader's marks enclose
(``repeat_one`` where that has one result, since torch takes a third longer to trace a list of one), and
``Reader`` reads that part of the graph again with the call's own tensors. When in doubt a call leads, which is
always right.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import fx, nn

from autopar.passes.trace.hidden import Hidden
from autopar.passes.trace.instances import Instance, instances
from autopar.passes.trace.reads import Reads, aside, can_record, reads_again, recording
from autopar.passes.trace.stand_in import Mode, fake
from autopar.passes.trace.structure import Structure
from autopar.passes.trace.tokens import IncomparableError, Names, meta, state_of, token

_MOST_LEADERS = 8
"""Of one kind of module; what differs that often is traced as it is."""
_sites = itertools.count()
_results: dict[int, list[tuple[Any, ...]]] = {}
"""By site, what the leader's results are, as ``meta`` says it."""

_library = torch.library.Library("autopar_trace", "DEF")
_library.define("mark(int site, bool end, Tensor[] tensors) -> ()")
_ANY_STRIDES = torch.Tag.flexible_layout  # else torch keeps a copy of each fake operand, for their strides
_library.define("repeat(int site, int call, Tensor[] tensors) -> Tensor[]", tags=_ANY_STRIDES)
_library.define("repeat_one(int site, int call, Tensor[] tensors) -> Tensor", tags=_ANY_STRIDES)
MARK = torch.ops.autopar_trace.mark.default
REPEAT = torch.ops.autopar_trace.repeat.default
REPEAT_ONE = torch.ops.autopar_trace.repeat_one.default
REPEATS = (REPEAT, REPEAT_ONE)
for _op in (MARK, *REPEATS):
    fx.has_side_effect(_op)  # else they are removed as unused


class UnrepeatableError(Exception):
    """The trace with repeated calls fails, or they cannot be read; without them the model may still be traced."""


@torch.library.register_fake("autopar_trace::mark", lib=_library)  # type: ignore[untyped-decorator]
def _mark(site: int, end: bool, tensors: list[torch.Tensor]) -> None:
    return None


@torch.library.register_torch_dispatch("autopar_trace::repeat", Mode, lib=_library)  # type: ignore[untyped-decorator]
def _repeat(mode: Mode, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> list[torch.Tensor]:
    return [
        fake(mode, torch.empty_strided(shape, stride, dtype=dtype, device="meta"), device)
        for _, shape, stride, dtype, device, _ in _results[args[0]]
    ]


@torch.library.register_torch_dispatch(  # type: ignore[untyped-decorator]
    "autopar_trace::repeat_one", Mode, lib=_library
)
def _repeat_one(mode: Mode, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> torch.Tensor:
    (result,) = _repeat(mode, func, types, args, kwargs)
    return result  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Call:
    """A call of an instance: its tensors, and all else that it is given, as a token."""

    instance: Instance
    leaves: Structure
    tensors: list[torch.Tensor]
    names: Names
    given: Any

    @classmethod
    def of(cls, instance: Instance, args: Any, kwargs: Any) -> _Call:
        """Raises IncomparableError."""
        tensors, leaves = Structure.of((args, kwargs))
        names = instance.names(tensors)
        return cls(
            instance=instance, leaves=leaves, tensors=tensors, names=names, given=_given(leaves, tensors, names)
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class _Leader:
    """A call that others may repeat. ``places``: where each tensor it returned comes from, an argument or a result."""

    site: int
    call: _Call
    reads: Reads
    returned: Structure
    places: tuple[tuple[str, int], ...]


class Repeats:
    """The repeated modules of a model, for one trace.

    ``canonical`` maps each name of a tensor to its first name. ``calls``: for each repeated call the instance that
    leads and the one that repeats it, by which the reader renames. ``hidden``: modules that are expected to repeat, and
    with which the trace fails if they do not; with ``hide`` False there are none.
    """

    def __init__(self, model: nn.Module, canonical: Mapping[str, str], *, hide: bool = True) -> None:
        self._instances = instances(model, canonical)
        self.hidden = Hidden(model, self._instances if hide else {})
        self._leaders: dict[int, list[_Leader]] = {}
        self._active: set[int] = set()
        self.calls: list[tuple[Instance, Instance]] = []

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Inside, calls of the model's repeated modules lead or repeat."""
        self._leaders.clear()
        self.calls.clear()
        patched: dict[type, FunctionType] = {}
        for instance in self._instances.values():
            owner = next(base for base in type(instance.module).__mro__ if "forward" in vars(base))
            patched.setdefault(owner, vars(owner)["forward"])
        try:
            for owner, forward in patched.items():
                owner.forward = self._wrapped(forward)  # type: ignore[attr-defined]
            with self.hidden.back():
                yield
        finally:
            for owner, forward in patched.items():
                owner.forward = forward  # type: ignore[attr-defined]
            for leader in itertools.chain(*self._leaders.values()):
                _results.pop(leader.site, None)

    def _wrapped(self, forward: FunctionType) -> Callable[..., Any]:
        @functools.wraps(forward)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            key = id(state_of(module))
            instance = self._instances.get(key)
            run = functools.partial(self._run, key, functools.partial(forward, module, *args, **kwargs))
            if instance is None or key in self._active or not can_record():
                return run()
            self._active.add(key)
            try:
                return self._lead_or_repeat(instance, run, args, kwargs)
            finally:
                self._active.discard(key)

        return call

    def _run(self, key: int, forward: Callable[[], Any]) -> Any:
        if key in self.hidden.inside:
            raise UnrepeatableError(f"{self._instances[key].path} does not repeat another module")
        return forward()

    def _lead_or_repeat(self, instance: Instance, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        try:
            call = aside(lambda: _Call.of(instance, args, kwargs))
        except IncomparableError:
            return run()
        leaders = self._leaders.setdefault(instance.kind, [])
        leader = aside(lambda: _alike(leaders, call))
        if leader is not None:
            return aside(lambda: self._repeat(leader, call))
        return run() if len(leaders) == _MOST_LEADERS else self._lead(call, run, leaders)

    def _lead(self, call: _Call, run: Callable[[], Any], leaders: list[_Leader]) -> Any:
        site = next(_sites)
        aside(lambda: MARK(site, False, call.tensors))
        reads = Reads(call.instance.modules, call.names)
        with recording(reads):
            out = run()
        aside(lambda: leaders.extend(_led(site, call, reads, out)))
        return out

    def _repeat(self, leader: _Leader, call: _Call) -> Any:
        reads_again(leader.reads, call.instance.modules)
        given = leader.site, len(self.calls), call.tensors
        results = [REPEAT_ONE(*given)] if len(_results[leader.site]) == 1 else REPEAT(*given)
        self.calls.append((leader.call.instance, call.instance))
        for result, (*_, learns) in zip(results, _results[leader.site], strict=True):
            if learns and not result.requires_grad:
                result.requires_grad_()
        taken = {"argument": call.tensors, "result": results}
        return leader.returned.unflatten(taken[kind][at] for kind, at in leader.places)


def _alike(leaders: Sequence[_Leader], call: _Call) -> _Leader | None:
    """The first leader that the call may repeat."""
    return next(
        (
            leader
            for leader in leaders
            if leader.call.given == call.given
            and leader.call.instance.corresponds(call.instance)
            and leader.reads.hold(call.instance.modules, call.names)
        ),
        None,
    )


def _led(site: int, call: _Call, reads: Reads, out: Any) -> Iterator[_Leader]:
    """The call that has run as a leader, unless it cannot be one."""
    if reads.refused or _given(call.leaves, call.tensors, call.names) != call.given:
        return
    tensors, returned = Structure.of(out)
    results = list({id(tensor): tensor for tensor in tensors if id(tensor) not in call.names.arguments}.values())
    if _is_new(results, call) and returned.is_plain():
        at = {id(tensor): ("result", number) for number, tensor in enumerate(results)}
        at |= {key: ("argument", number) for key, number in call.names.arguments.items()}
        _results[site] = [meta(tensor) for tensor in results]
        MARK(site, True, results)
        places = tuple(at[id(tensor)] for tensor in tensors)
        yield _Leader(site=site, call=call, reads=reads, returned=returned, places=places)


def _given(leaves: Structure, tensors: Sequence[torch.Tensor], names: Names) -> Any:
    """All that a call is given but for the values of its tensors. Raises IncomparableError."""
    storages: dict[int, int] = {}
    shared = tuple(storages.setdefault(tensor.untyped_storage()._cdata, at) for at, tensor in enumerate(tensors))
    kinds = tuple(token(tensor, names) for tensor in tensors)
    return leaves.spec, token(leaves.statics, names), kinds, shared, _modes()


def _modes() -> tuple[Any, ...]:
    devices = ("cpu", "cuda")
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(),
        *((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices),
    )  # fmt: skip


def _is_new(results: Sequence[torch.Tensor], call: _Call) -> bool:
    """Whether no result shares memory with another one, an argument or a tensor of the module."""
    taken = call.instance.storages() | {tensor.untyped_storage()._cdata for tensor in call.tensors}
    for tensor in results:
        storage = tensor.untyped_storage()._cdata
        if storage in taken:
            return False
        taken.add(storage)
    return True

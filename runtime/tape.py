"""Selective recomputation: operations that run once, though the block around them runs twice.

A block is recomputed by ``torch.utils.checkpoint``, which drops what autograd saves and runs the block again. A
``Tape`` goes with each call: the first run writes the results of the operations marked by ``run_once`` on it, the
second reads them. What is read by nothing that runs again is written as its shape alone.

Inside such an operation the kernels that do the work are replaced (``_KERNELS``), not the operation: autograd sees it
both times and saves the same tensors in the same order, as checkpointing demands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_KERNELS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "autopar::experts_forward",
    "autopar::exchanged_forward",
    "_scaled_dot_product_",
)
_here = threading.local()


class Tape:
    """Results of one call of a block, in the order in which they were made."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.at: int | None = None

    def once(self, make: Callable[[], Any], *, kept: bool) -> Any:
        """``make()`` the first time, what it returned the second time. Not kept: of that shape, without values."""
        if self.at is None:
            made = make()
            self.results.append(_each(made, torch.Tensor.detach if kept else _shape_alone))
            return made
        self.at += 1
        return _each(self.results[self.at - 1], torch.Tensor.detach if kept else _empty)


def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For the first run of a block and for the one after it, as ``checkpoint`` wants them."""
    tape = Tape()
    return _playing(tape, None), _Again(tape)


class _Again(AbstractContextManager[None]):
    """A context that may be entered for each backward pass."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def __enter__(self) -> None:
        self.inner = _playing(self.tape, 0)
        self.inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.inner.__exit__(*error)


@contextmanager
def _playing(tape: Tape, at: int | None) -> Iterator[None]:
    before = getattr(_here, "tape", None)
    _here.tape, tape.at = tape, at
    try:
        yield
    finally:
        _here.tape = before


def run_once(function: Callable[..., Any], *, kept: bool) -> Callable[..., Any]:
    """The operation, whose kernels run once where a tape goes along."""

    def call(*args: Any, **kwargs: Any) -> Any:
        tape: Tape | None = getattr(_here, "tape", None)
        if tape is None:
            return function(*args, **kwargs)
        with _Kernels(tape, function, kept=kept):
            return function(*args, **kwargs)

    call.__name__ = getattr(function, "__name__", "operation").replace(".", "_")
    return call


def sent_once(move: Callable[..., Tensor], *, kept: bool) -> Callable[..., Tensor]:
    """The collective, without its gradient, done once where a tape goes along."""

    def call(*args: Any) -> Tensor:
        tape: Tape | None = getattr(_here, "tape", None)
        result: Tensor = move(*args) if tape is None else tape.once(lambda: move(*args), kept=kept)
        return result

    return call


class _Kernels(TorchDispatchMode):
    def __init__(self, tape: Tape, function: Any, *, kept: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape, self.function, self.kept = tape, function, kept

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        given = kwargs or {}
        if func is self.function or name in _KERNELS or name.startswith(_KERNELS[-1]):
            return self.tape.once(lambda: func(*args, **given), kept=self.kept)
        return func(*args, **given)


def _each(values: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(values, (tuple, list)):
        return type(values)(_each(value, change) for value in values)
    return change(values) if isinstance(values, (Tensor, _Shape)) else values


class _Shape:
    """What a tensor looks like, without its values."""

    def __init__(self, tensor: Tensor) -> None:
        self.size, self.stride = tensor.shape, tensor.stride()
        self.how: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device}


def _shape_alone(tensor: Tensor) -> _Shape:
    return _Shape(tensor)


def _empty(shape: _Shape) -> Tensor:
    return torch.empty_strided(shape.size, shape.stride, **shape.how)

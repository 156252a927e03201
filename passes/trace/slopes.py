"""Whether a backward multiplies the gradient that comes in, element by element, by what does not depend on it.

Such a backward is known by what it makes of ones. It is looked for in the operations that a run on small tensors asks
for, not in numbers: whatever takes the gradient must be linear in it, and leave each element at its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SMALL = 3  # of each dim

_KEEP = (
    "neg", "clone", "alias", "detach", "_to_copy", "to", "view", "_unsafe_view", "reshape", "view_as", "expand",
    "contiguous", "positive",
)  # fmt: skip
_BACKWARDS = (
    "threshold", "gelu", "sigmoid", "tanh", "hardtanh", "silu", "mish", "leaky_relu", "elu", "softplus", "hardswish",
    "hardsigmoid", "log_sigmoid", "logit",
)  # fmt: skip
FACTORIES = (
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "zero",
    "fill",
)  # fmt: skip
"""What is made of a tensor's shape, whatever its numbers."""


# Of arguments the result, and what gives their gradients for that of the result.
Run: TypeAlias = "Callable[[Sequence[Any]], tuple[Tensor, Callable[[Tensor], Any]]]"


class NotSlopedError(Exception):
    """Why a backward is not of this kind."""


def check_slopes(run: Run, args: Sequence[Any]) -> None:
    """Raise NotSlopedError unless the backward that ``run`` gives beside its result is of this kind.

    ``args``: of a call; tensors are replaced by small ones of random numbers.
    """
    kinds = [_Kind.of(value) if isinstance(value, Tensor) else value for value in args]
    found: list[BaseException | None] = [None]

    def tried() -> None:
        try:
            _check(run, kinds)
        except BaseException as error:  # noqa: BLE001 — told in the thread that asked
            found[0] = error

    thread = threading.Thread(target=tried)  # which has none of the modes of a trace
    thread.start()
    thread.join()
    if isinstance(found[0], NotSlopedError):
        raise found[0]
    if found[0] is not None:
        raise NotSlopedError(f"on small tensors it fails: {type(found[0]).__name__}: {found[0]}")


@dataclass(frozen=True)
class _Kind:
    """Of a tensor that a small one stands for."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> _Kind:
        return cls(tuple(min(size, SMALL) for size in tensor.shape), tensor.dtype)

    def drawn(self, draw: torch.Generator) -> Tensor:
        if self.dtype.is_floating_point:
            return torch.randn(self.shape, generator=draw, dtype=torch.float64).to(self.dtype)
        return torch.zeros(self.shape, dtype=self.dtype)


def _check(run: Run, kinds: Sequence[Any]) -> None:
    draw = torch.Generator().manual_seed(0)
    args = [kind.drawn(draw) if isinstance(kind, _Kind) else kind for kind in kinds]
    mode = _Linear(args)
    with torch.no_grad(), mode:
        out, backward = run(args)
        gradient = torch.ones_like(out)
        mode.follow(gradient)
        slopes = backward(gradient)
    given = slopes if isinstance(slopes, tuple | list) else (slopes,)
    for value, slope in zip(args, given, strict=False):
        if slope is None:
            continue
        if not mode.is_linear(slope):
            raise NotSlopedError("a gradient that it returns does not come from the one that comes in alone")
        if slope.shape != out.shape or not isinstance(value, Tensor) or value.shape != out.shape:
            raise NotSlopedError("result, operand and gradient differ in shape")


class _Linear(TorchDispatchMode):
    """Follows what is linear in a gradient, element by element; raises NotSlopedError where something else is made."""

    def __init__(self, args: Sequence[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shape = torch.Size()
        self._linear: dict[int, Tensor] = {}
        self._zero: dict[int, Tensor] = {}
        self._made = {id(value): value for value in args}  # all but constants

    def follow(self, gradient: Tensor) -> None:
        """What is made of this is looked at from here on."""
        self._shape, self._linear = gradient.shape, {id(gradient): gradient}

    def is_linear(self, value: Any) -> bool:
        """Zeros are."""
        return isinstance(value, Tensor) and (id(value) in self._linear or self._is_zero(value))

    def _is_zero(self, value: Any) -> bool:
        """By how it was made, whatever the numbers."""
        if isinstance(value, int | float):
            return value == 0
        constant = isinstance(value, Tensor) and value.dim() == 0 and id(value) not in self._made
        return isinstance(value, Tensor) and (id(value) in self._zero or (constant and not value.any()))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        name = str(func._schema.name).partition("::")[2]
        follows = [id(leaf) in self._linear for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)]
        linear = any(follows) and self._allowed(name.removesuffix("_"), args, given)
        zero = not linear and self._makes_zeros(name, args)
        out = func(*args, **given)
        for tensor in _tensors(out):
            self._made[id(tensor)] = tensor
            for kinds in (self._linear, self._zero):
                kinds.pop(id(tensor), None)
            if linear:
                if tensor.shape != self._shape or not tensor.is_floating_point():
                    raise NotSlopedError(f"{name} makes another shape of the gradient")
                self._linear[id(tensor)] = tensor
            elif zero:
                self._zero[id(tensor)] = tensor
        return out

    def _allowed(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether the result is linear in the gradient; False where it does not depend on its numbers."""
        first, *others = args
        linear, alone = id(first) in self._linear, not any(id(leaf) in self._linear for leaf in tree_leaves(others))
        if name in FACTORIES:
            return False
        fits = (
            (name in _KEEP and linear)
            or (name == "mul" and linear == alone)
            or (name == "div" and linear and alone and not kwargs.get("rounding_mode"))
            or (name in ("add", "sub") and all(self._follows(value) for value in args[:2]))
            or (name == "where" and not linear and all(self._follows(value) for value in others))
            or (name == "masked_fill" and linear and self._is_zero(args[2]))
            or (name == "index_put" and linear and _is_mask(args[1]) and self._is_zero(args[2]) and not any(args[3:]))
            or (name == "copy" and len(args) > 1 and self._follows(args[1]))
            or (name.removesuffix("_backward") in _BACKWARDS and name.endswith("_backward") and linear and alone)
        )
        if not fits:
            raise NotSlopedError(f"it gives the gradient to {name}")
        return True

    def _follows(self, value: Any) -> bool:
        return id(value) in self._linear or self._is_zero(value)

    def _makes_zeros(self, name: str, args: tuple[Any, ...]) -> bool:
        if name in ("full", "full_like", "new_full", "scalar_tensor", "fill_"):
            return self._is_zero(args[0] if name == "scalar_tensor" else args[-1])
        return "zeros" in name or name == "zero_" or (name in (*_KEEP, "lift_fresh") and self._is_zero(args[0]))


def _is_mask(indices: Any) -> bool:
    return len(indices) == 1 and isinstance(indices[0], Tensor) and indices[0].dtype is torch.bool


def _tensors(out: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor))

"""A ``torch.autograd.Function`` of the user's, whose backward a trace does not see.

Where its backward multiplies each element of the gradient by a number of its own (activations, straight-through
estimators, reversed and scaled gradients), its forward and these numbers are traced, and ``autopar.sloped`` puts them
together. Where it is linear in the gradient in another way, its operations are turned round (``transposed.py``). All
others are refused by name, but for torch's reentrant checkpoints, which are what they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import CheckpointFunction

from autopar.ir.errors import UnsupportedError
from autopar.passes.trace.slopes import NotSlopedError, check_slopes
from autopar.passes.trace.transposed import read_backward, turned

TARGETS = {"autopar_trace.sloped.default": "autopar.sloped"}
"""Operations of a trace by what they are called in the graph."""

# Those of registered operators, which are traced whole, and of collectives, which are refused as such.
_TORCHS = ("torch._library.autograd", "torch.distributed._functional_collectives")

_library = torch.library.Library("autopar_trace", "FRAGMENT")
_library.define("sloped(Tensor value, Tensor x, Tensor slope) -> Tensor")


@torch.library.register_fake("autopar_trace::sloped", lib=_library)  # type: ignore[untyped-decorator]
def _sloped(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    return torch.empty_like(value)


@contextmanager
def custom_functions() -> Iterator[None]:
    """Inside, a call of a custom function leaves operations in the trace, or raises UnsupportedError with its name."""
    function = torch.autograd.Function
    original = vars(function)["apply"]

    def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ in _TORCHS:
            return original.__get__(None, cls)(*args, **kwargs)
        if cls is CheckpointFunction:  # the search says what is computed again
            run, _, *given = args
            return run(*given, **kwargs)
        name = f"{cls.__module__}.{cls.__qualname__}"
        try:
            return _traced(cls, args, kwargs)
        except NotSlopedError as error:
            raise UnsupportedError(
                f"the model calls {name}, a torch.autograd.Function: its backward cannot be traced, since it does more "
                f"with the gradient than operations that are known to be linear ({error}). Write its forward with "
                "torch operations, or register it as a torch.library operator and give it a rule with "
                "autopar.register_rule",
                details={"function": name},
            ) from None

    function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        function.apply = original  # type: ignore[method-assign]


class _Context:
    """What forward leaves for backward."""

    def __init__(self, args: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(isinstance(value, Tensor) and value.is_floating_point() for value in args)
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def set_materialize_grads(self, value: bool) -> None:
        """There is one result, whose gradient is always there."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        raise NotSlopedError("a result has no gradient")

    def mark_dirty(self, *tensors: Any) -> None:
        raise NotSlopedError("it writes to what it is given")

    def held(self) -> list[Tensor]:
        """Tensors among what was left."""
        return [leaf for leaf in tree_leaves(vars(self)) if isinstance(leaf, Tensor)]

    def holding(self, tensors: Sequence[Tensor]) -> _Context:
        """The same with other tensors in place of ``held()``."""
        made, others = _Context(()), iter(tensors)
        vars(made).update(tree_map(lambda leaf: next(others) if isinstance(leaf, Tensor) else leaf, vars(self)))
        return made


def _traced(cls: type[torch.autograd.Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs:
        raise NotSlopedError("it is called by keywords")

    def run(given: Sequence[Any]) -> tuple[Tensor, Any]:
        context: Any = _Context(given)
        if cls.setup_context is torch.autograd.Function.setup_context:
            out = cls.forward(context, *given)
        else:
            out = cls.forward(*given)
            cls.setup_context(context, tuple(given), out)
        if not isinstance(out, Tensor):
            raise NotSlopedError(f"its result is a {type(out).__name__}, not one tensor")
        return out, context

    def followed(given: Sequence[Any]) -> tuple[Tensor, Callable[[Tensor], Any]]:
        out, context = run(given)
        return out, lambda gradient: cls.backward(context, gradient)

    if not torch.is_grad_enabled():
        return run(args)[0]
    try:
        check_slopes(followed, args)
        apart = True
    except NotSlopedError:
        apart = False
    value, context = run([each.detach() if isinstance(each, Tensor) else each for each in args])
    value = value.detach()  # of tensors that are no arguments, too
    found = _slopes(cls, value, context, args) if apart else _turned(cls, value, context, args)
    for x, slope in found:
        value = torch.ops.autopar_trace.sloped(value, x, slope.detach())
        if x.requires_grad:
            value.requires_grad_()
    return value


def _slopes(
    cls: type[torch.autograd.Function], value: Tensor, context: _Context, args: Sequence[Any]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Operands, and by what the gradient is multiplied for each."""
    slopes = cls.backward(context, torch.ones_like(value))
    for x, slope in zip(args, slopes if isinstance(slopes, tuple | list) else (slopes,), strict=False):
        if slope is not None:
            if not slope.shape == x.shape == value.shape:
                raise NotSlopedError("result, operand and gradient differ in shape")
            yield x, slope


def _turned(
    cls: type[torch.autograd.Function], value: Tensor, context: _Context, args: Sequence[Any]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each operand what has its gradient, with slopes of one."""
    held = [each.detach() for each in context.held()]
    graph = read_backward(lambda gradient, *given: cls.backward(context.holding(given), gradient), [value, *held])
    for at, part in turned(graph, value, held, args):
        if args[at].requires_grad:
            yield part, torch.ones_like(value)

"""Tensors that are trained but are no parameters of the model: they would be constants of the program, silently."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from autopar.ir.errors import UnsupportedError


def refuse_strays(model: nn.Module, loss_fn: Callable[..., Any] | None) -> None:
    """Raise UnsupportedError naming the first that a module or the loss function holds."""
    own = {id(parameter) for parameter in model.parameters()}
    for where, value in [*_of_modules(model), *_of_loss(loss_fn)]:
        held = list(value.parameters()) if isinstance(value, nn.Module) else [value]
        if any(_is_trained(each) and id(each) not in own for each in held):
            raise UnsupportedError(
                f"{where} is trained, but it is no parameter of the model and would get no gradient: make it one of "
                "the model's parameters, or its requires_grad False"
            )


def _is_trained(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf


def _of_modules(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                yield f"the tensor {path}.{name}".replace(" .", " "), value


def _of_loss(loss_fn: Callable[..., Any] | None) -> Iterator[tuple[str, Any]]:
    if loss_fn is None:
        return
    if inspect.ismethod(loss_fn):
        yield "what loss_fn is a method of", loss_fn.__self__
        loss_fn = loss_fn.__func__
    if inspect.isfunction(loss_fn):
        found = inspect.getclosurevars(loss_fn)
        named = {**found.globals, **found.nonlocals}
    else:
        yield "loss_fn", loss_fn
        named = {} if isinstance(loss_fn, nn.Module) else getattr(loss_fn, "__dict__", {})
    for name, value in named.items():
        if isinstance(value, (torch.Tensor, nn.Module)):
            yield f"{name} of loss_fn", value

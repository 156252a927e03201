"""Hooks that a program does not call: those on gradients, and those in forward of modules that it runs in place of."""

from __future__ import annotations

from torch import nn

from autopar.ir.errors import UnsupportedError

# Torch has no public way to ask whether there are hooks; where a name is gone nothing is found.
_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_MODULES = ("_backward_hooks", "_backward_pre_hooks")
_FORWARD = ("_forward_hooks", "_forward_pre_hooks")

_INSTEAD = "Change the gradients after train_step and before optimizer.step()"


def refuse_hooks(model: nn.Module) -> None:
    """Raise UnsupportedError naming the first parameter or module whose gradients a hook is to see or change."""
    for name, parameter in model.named_parameters():
        if any(getattr(parameter, hooks, None) for hooks in _OF_PARAMETERS):
            raise UnsupportedError(f"parameter {name} has a hook on its gradient, which is not called. {_INSTEAD}")
    for path, module in model.named_modules():
        if any(getattr(module, hooks, None) for hooks in _OF_MODULES):
            raise UnsupportedError(
                f"{path or 'the model itself'} has a backward hook, which is not called. {_INSTEAD}"
            )


def refuse_hooks_on_parts(model: nn.Module) -> None:
    """As ``refuse_hooks`` for a model whose program runs in place of its modules: hooks in forward of the modules
    inside it are not called either."""
    refuse_hooks(model)
    for path, module in model.named_modules():
        if path and any(getattr(module, hooks, None) for hooks in _FORWARD):
            raise UnsupportedError(
                f"{path} has a hook that was registered after parallelize(): its forward is a part of the program and "
                "is not called by itself. Register it before, or return what it is to see from the model"
            )

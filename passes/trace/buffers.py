"""What a model's own code does to its buffers, put so that a trace sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from autopar.ir.errors import UnsupportedError


@contextmanager
def replaced_buffers_written(model: nn.Module) -> Iterator[None]:
    """Inside, the model may say ``self.mean = new``: at the end that becomes a write to the buffer.

    torch.export sees it for the outermost module alone. Raises UnsupportedError where the new tensor is not
    like the old one. Strict export follows such assignments itself.
    """
    if torch.compiler.is_dynamo_compiling():
        yield
        return
    before = [(path, module, dict(module._buffers)) for path, module in model.named_modules()]
    yield
    for path, module, held in before:
        for name, new in list(module._buffers.items()):
            old = held.get(name)
            if new is old:
                continue
            fqn = f"{path}.{name}".removeprefix(".")
            if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
                raise UnsupportedError(
                    f"the forward makes or removes the buffer {fqn}; register it with a tensor before training"
                )
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                raise UnsupportedError(
                    f"the forward replaces the buffer {fqn}, {old.dtype} {list(old.shape)}, with another kind of "
                    f"tensor, {new.dtype} {list(new.shape)}"
                )
            module._buffers[name] = old
            old.copy_(new.detach())


@contextmanager
def batch_norms_of_one_device() -> Iterator[None]:
    """Inside, ``nn.SyncBatchNorm`` is a batch norm: a trace has the whole batch, and so have its statistics."""
    original = vars(nn.SyncBatchNorm)["forward"]
    nn.SyncBatchNorm.forward = _BatchNorm.forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.SyncBatchNorm.forward = original  # type: ignore[method-assign]


def refuse_cumulative_averages(model: nn.Module) -> None:
    """Raise UnsupportedError for a batch norm whose momentum is a number that its own buffer holds."""
    for name, module in model.named_modules():
        if (
            isinstance(module, _BatchNorm)
            and module.training
            and module.track_running_stats
            and module.momentum is None
        ):
            raise UnsupportedError(
                f"{name}: {type(module).__name__}(momentum=None) weighs each batch by the number of batches before it, "
                f"which a trace does not have; give it a momentum"
            )

"""Fake tensors in place of a model's own, for the time of a trace.

Fake tensors have a type and no data, so that tracing needs no memory and no weights, whether the model
is real or on meta. All of them are on one device, whatever the model's own devices are.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from autopar.ir.types import TensorType
from autopar.passes.trace.dtypes import TORCH_DTYPES, dtype_name
from autopar.passes.trace.traced import ParamInfo

Mode: TypeAlias = FakeTensorMode


def fake(mode: Mode, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A fake tensor on ``device`` like one on meta."""
    return FakeTensor(mode, meta, device)


class StandIns:
    """Makes one fake tensor for each distinct tensor; float32 ones of ``lowered`` kinds in ``half``."""

    def __init__(self, half: str | None) -> None:
        self.half = half
        self.mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def of(self, tensor: torch.Tensor, *, lower: bool) -> torch.Tensor:
        """A fake of the same shape; ``lower``: float32 is presented in the type of mixed precision."""
        dtype = self.compute_dtype(tensor) if lower else tensor.dtype
        shape = torch.empty(tuple(tensor.shape), dtype=dtype, device="meta")
        found = fake(self.mode, shape, torch.device("cpu"))
        if isinstance(tensor, nn.Parameter):
            found._is_param = True  # what nn.Parameter would do by an operation of its own
        return found.requires_grad_() if tensor.requires_grad else found

    def compute_dtype(self, tensor: torch.Tensor) -> torch.dtype:
        lowered = self.half is not None and tensor.dtype == torch.float32
        return TORCH_DTYPES[self.half] if self.half is not None and lowered else tensor.dtype


def describe_parameters(model: nn.Module, stand_ins: StandIns) -> tuple[ParamInfo, ...]:
    """Every parameter, then every buffer, each once; UnsupportedError for an unknown element type."""
    persistent = set(model.state_dict(keep_vars=True))
    names: dict[int, list[str]] = {}
    tensors: dict[int, tuple[torch.Tensor, bool]] = {}
    for fqn, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(fqn)
        tensors[id(parameter)] = (parameter, False)
    for fqn, buffer in model.named_buffers(remove_duplicate=False):
        names.setdefault(id(buffer), []).append(fqn)
        tensors.setdefault(id(buffer), (buffer, True))
    found = []
    for key, (tensor, is_buffer) in tensors.items():
        fqn, *aliases = names[key]
        stored = TensorType(dtype_name(tensor.dtype, fqn), tuple(tensor.shape))
        compute = stored.dtype if is_buffer else dtype_name(stand_ins.compute_dtype(tensor))
        found.append(
            ParamInfo(
                fqn=fqn,
                type=stored,
                compute_dtype=compute,
                trainable=tensor.requires_grad,
                buffer=is_buffer,
                persistent=any(name in persistent for name in names[key]),
                aliases=tuple(aliases),
            )
        )
    return tuple(found)


@contextmanager
def standing_in(model: nn.Module, stand_ins: StandIns, loss_fn: object = None) -> Iterator[None]:
    """Inside, every tensor of the model is a fake and caches are off; afterwards all is as before, ``loss_fn`` too.

    That holds for what modules have as attributes and hooks too, and for containers there: a forward may add some or
    fill them, and torch.export puts copies in their places, so that two modules would no longer share what they shared.
    """
    undo: list[tuple[Any, str, Any]] = []
    fakes: dict[int, torch.Tensor] = {}
    beside = loss_fn.modules() if isinstance(loss_fn, nn.Module) else ()
    held = [_Held(vars(module)) for module in (*model.modules(), *beside)]

    def put(table: Any, name: str, value: Any) -> None:
        undo.append((table, name, table[name]))
        table[name] = value

    def replaced(tensor: torch.Tensor, lower: bool) -> torch.Tensor:
        if id(tensor) not in fakes:
            fakes[id(tensor)] = stand_ins.of(tensor, lower=lower)
        return fakes[id(tensor)]

    try:
        for module in model.modules():
            for table, lower in ((module._parameters, True), (module._buffers, False)):
                for name, tensor in list(table.items()):
                    if tensor is not None:
                        put(table, name, replaced(tensor, lower))
            for name, value in list(vars(module).items()):
                if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                    put(vars(module), name, replaced(value, False) if value.is_meta else value.cpu())
            config = getattr(module, "config", None)
            if getattr(config, "use_cache", None) is True and "use_cache" in vars(config):
                put(vars(config), "use_cache", False)
        yield
    finally:
        for table, name, value in reversed(undo):
            table[name] = value
        for attributes in held:
            attributes.put_back()


# Others may not be written to as these are.
_CONTAINERS = frozenset((list, dict, set, tuple, deque, OrderedDict, defaultdict, Counter))


class _Held:
    """A module's attributes, its hooks too, and what is in the containers among them, and in those in these."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self._attributes, self._before = attributes, dict(attributes)
        self._contents: dict[int, tuple[Any, Any]] = {}
        self._look_into(attributes.values())

    def _look_into(self, values: Iterable[Any]) -> None:
        for each in values:
            value = vars(each) if isinstance(each, SimpleNamespace) else each
            if type(value) in _CONTAINERS and id(value) not in self._contents:
                contents = dict(value) if isinstance(value, dict) else list(value)
                self._contents[id(value)] = value, contents
                if contents:
                    self._look_into(contents.values() if isinstance(contents, dict) else contents)

    def put_back(self) -> None:
        for name in [name for name in self._attributes if name not in self._before]:
            del self._attributes[name]
        self._attributes.update(self._before)
        for value, contents in self._contents.values():
            if isinstance(value, tuple) or not (value or contents):
                continue
            value.clear()
            value.extend(contents) if isinstance(value, (list, deque)) else value.update(contents)

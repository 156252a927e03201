"""What a user says of a part of a model: by name pattern, or around the code that builds it.

    with autopar.split(dim=0, axis="tp"):
        self.classifier = nn.Linear(512, 100_000)

says it of every parameter that is registered inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autopar.ir.constraints import Constraint
from autopar.ir.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

# On a parameter: the annotations inside which it was registered.
_MARK = "_autopar_annotations"
# Of annotations that are entered: what takes the hook away again.
_ENTERED: list[Any] = []


class Annotation(Constraint):
    """A constraint that may be entered: then it is about those parameters registered inside that match its pattern."""

    __slots__ = ()

    def __enter__(self) -> Annotation:
        from torch.nn.modules.module import register_module_parameter_registration_hook

        _ENTERED.append(register_module_parameter_registration_hook(self._mark))
        return self

    def __exit__(self, *_: object) -> None:
        _ENTERED.pop().remove()

    def _mark(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        """Called by torch with each parameter that a module gets."""
        if parameter is not None and self not in (known := getattr(parameter, _MARK, ())):
            setattr(parameter, _MARK, (*known, self))


def replicate(pattern: str = "*", *, devices: int | None = None) -> Annotation:
    """Parameters that match ``pattern``, or that the modules it names have, are whole on every device.

    ``devices``: so many compute with them, which are all devices of a pipeline stage.
    """
    return Annotation(pattern, devices=devices)


def split(pattern: str = "*", *, dim: int, axis: str) -> Annotation:
    """Parameters that match ``pattern`` are split in ``dim`` over mesh axis ``axis``."""
    return Annotation(pattern, dim=dim, axis=axis)


def stage(pattern: str = "*", index: int = 0) -> Annotation:
    """Parameters that match ``pattern`` stand in pipeline stage ``index``, the first of which is 0."""
    return Annotation(pattern, index=index)


def annotated(model: nn.Module, given: Any) -> tuple[Any, ...]:
    """``given`` and what was said of the model's parameters while it was built. Raises UsageError for one constraint
    that is in no list."""
    if isinstance(given, Constraint):
        raise UsageError(f"constraints={given}: give a list of constraints")
    found: dict[Constraint, None] = {}
    for name, parameter in model.named_parameters():
        for said in getattr(parameter, _MARK, ()):
            if said.matches(name):
                found[Constraint(name, said.dim, said.axis, said.index, said.devices)] = None
    return (*given, *found)

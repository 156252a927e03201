"""What a MODEL on the command line stands for: the zoo, a transformers configuration, or a function."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopar.ir.errors import AutoparError, UsageError

if TYPE_CHECKING:
    from torch import nn

REDUCED_BATCH, REDUCED_LENGTH = 16, 24
FORMS = "zoo:NAME, hf:PATH_OR_NAME, or package.module:function returning (model, example_inputs)"


@dataclass(frozen=True, kw_only=True, eq=False)
class Resolved:
    """A model with its example inputs (global batch); ``name`` is what a plan calls it."""

    name: str
    model: nn.Module
    example_inputs: tuple[Any, ...] | dict[str, Any]


def resolve(
    spec: str, *, batch_size: int | None = None, seq_len: int | None = None, layers: int | None = None
) -> Resolved:
    """Build the model that ``spec`` names; sizes that are None are left to it.

    Raises ``UsageError`` for an unknown name, a size that it does not take, or a function that fails.
    """
    prefix, colon, rest = spec.partition(":")
    if not colon or not rest or not prefix:
        raise UsageError(f"{spec!r} is not a model; write {FORMS}", details={"model": spec})
    sizes = {"batch_size": batch_size, "seq_len": seq_len, "layers": layers}
    if prefix in ("zoo", "hf"):
        _need_transformers(spec)
    if prefix == "zoo":
        from autopar.zoo import find

        model, inputs = find(rest).build(**sizes)
        return Resolved(name=spec, model=model, example_inputs=inputs)
    if prefix == "hf":
        from autopar.zoo.hf import build_hf

        model, inputs = build_hf(rest, **sizes)
        return Resolved(name=_portable_name(rest), model=model, example_inputs=inputs)
    function = _function(spec, prefix, rest)
    return _checked(spec, _call(spec, function, {key: n for key, n in sizes.items() if n is not None}))


@dataclass(frozen=True)
class Reduced:
    """What ``spec`` names at a size that any machine computes, with real random weights and inputs.

    Models of the zoo and of transformers configurations become narrow and shallow; a function's are as it makes them.
    ``length``: positions that the whole model is used with; if that is all it has, so it is when reduced.
    """

    spec: str
    length: int | None = None

    def __call__(self) -> tuple[nn.Module, tuple[Any, ...] | dict[str, Any]]:
        prefix, _, rest = self.spec.partition(":")
        if prefix not in ("zoo", "hf"):
            found = resolve(self.spec)
            return found.model, found.example_inputs
        _need_transformers(self.spec)
        import torch

        from autopar.zoo import find
        from autopar.zoo.hf import architecture
        from autopar.zoo.reduce import reduced

        whole = find(rest).architecture() if prefix == "zoo" else architecture(rest)
        small = reduced(whole, all_of=self.length, length=REDUCED_LENGTH)
        torch.manual_seed(0)
        return small.build("cpu"), small.draw(REDUCED_BATCH, REDUCED_LENGTH, 0)


def _need_transformers(spec: str) -> None:
    if importlib.util.find_spec("transformers") is None:
        raise UsageError(f"{spec} needs transformers, which is not installed: pip install 'autopar[hf]'")


def _portable_name(source: str) -> str:
    """``hf:`` and the name; of a path its last meaningful part, since folders differ between machines."""
    path = Path(source)
    if not path.exists():
        return f"hf:{source}"
    path = path.resolve()
    return f"hf:{path.parent.name if path.name == 'config.json' else path.stem if path.is_file() else path.name}"


def _function(spec: str, module_name: str, attribute: str) -> Callable[..., Any]:
    """Import the function as ``python -m`` would, with the current folder first."""
    import torch  # noqa: F401  (before the current folder, whose files could hide its modules)

    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
    except AutoparError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(spec, "cannot be imported", error) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{spec}: {module_name} has no {attribute}", details={"model": spec})
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{spec} is {type(found).__name__}, expected a function; write {FORMS}")
    return found  # type: ignore[no-any-return]


def _call(spec: str, function: Callable[..., Any], sizes: dict[str, int]) -> object:
    """Call the function with the sizes that were given, which it must all accept."""
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    refused = [key for key in sizes if key not in parameters and not takes_any]
    if refused:
        options = ", ".join(f"--{key.replace('_', '-')}" for key in refused)
        raise UsageError(
            f"{spec}: the function takes no {', '.join(refused)}; leave out {options} or add the parameter",
            details={"model": spec, "refused": refused},
        )
    try:
        return function(**sizes)
    except AutoparError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(spec, "failed", error) from error


def _failed(spec: str, what: str, error: BaseException) -> UsageError:
    """The error of the user's own code, with the line it was raised at."""
    line = ""
    if error.__traceback__ is not None:
        frame = inspect.getinnerframes(error.__traceback__)[-1]
        line = f"\n  at {Path(frame.filename).name}, line {frame.lineno}, in {frame.function}"
    return UsageError(
        f"{spec} {what}: {type(error).__name__}: {error}{line}\n  --debug shows the traceback",
        details={"model": spec, "raised": type(error).__name__},
    )


def _checked(spec: str, built: object) -> Resolved:
    from torch import nn

    match built:
        case (nn.Module() as model, (tuple() | dict()) as inputs):
            return Resolved(name=spec, model=model, example_inputs=inputs)
    found = type(built).__name__
    if isinstance(built, (tuple, list)):
        found += f" of {', '.join(type(part).__name__ for part in built) or 'nothing'}"
    raise UsageError(
        f"{spec} returned {found}; expected (model, example_inputs): an nn.Module, and a tuple or dict of tensors",
        details={"model": spec},
    )

"""Trace a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from autopar.ir.errors import UnsupportedError, UsageError
from autopar.ir.graph import Graph
from autopar.ir.optable import TABLE
from autopar.passes.canonicalize import RULES
from autopar.passes.trace.again import refuse_unsteady
from autopar.passes.trace.buffers import refuse_cumulative_averages
from autopar.passes.trace.calling import calling
from autopar.passes.trace.communication import refuse_distributed
from autopar.passes.trace.complexes import refuse_complex
from autopar.passes.trace.composite import write_out
from autopar.passes.trace.convert import Reader, is_read
from autopar.passes.trace.export import PREFIX, Loss
from autopar.passes.trace.programs import Programs
from autopar.passes.trace.repeats import Repeats, UnrepeatableError
from autopar.passes.trace.stand_in import StandIns, describe_parameters
from autopar.passes.trace.strays import refuse_strays
from autopar.passes.trace.structure import Structure
from autopar.passes.trace.traced import Traced

_HALF = {None: None, "bf16": "bf16", "fp16": "f16"}


def trace(
    model: nn.Module,
    example_inputs: tuple[Any, ...] | Mapping[str, Any],
    *,
    loss_fn: Loss | None = None,
    mixed_precision: str | None = None,
    repeated_once: bool = True,
    gaps: bool = False,
) -> Traced:
    """Read the forward of ``model`` into a Graph, in the training mode that it is in.

    ``example_inputs``: positional (tuple) or keyword (dict) arguments of the global batch; only shapes and
    element types matter. With ``loss_fn``, which is called as ``loss_fn(output, target)``, the last
    of the tuple or the entry ``target`` of the dict is the target, and the model's output becomes
    ``(loss, output)``. Under ``mixed_precision`` float32 parameters and inputs are presented in
    that type; buffers keep theirs. ``repeated_once``: modules that are alike are traced once; the graph is the same.
    With ``gaps`` it may lack the middle of long chains of such modules, which ``Traced.gaps`` then tells.

    Ensures: the model is unchanged, no tensor of it is copied. Raises: TraceError with the module and
    the source line, UnsupportedError, UsageError.
    """
    if mixed_precision not in _HALF:
        raise UsageError(f"mixed_precision={mixed_precision!r}: one of None, 'bf16', 'fp16'")
    refuse_distributed(model)
    args, kwargs = _call(example_inputs, loss_fn)
    tensors, in_spec = Structure.of((args, kwargs))
    called = calling(model, args, kwargs, target=loss_fn is not None)
    input_names = tuple(name for entry in called.entries.values() for name in entry.inputs)
    refuse_cumulative_averages(model)
    refuse_strays(model, loss_fn)
    stand_ins = StandIns(_HALF[mixed_precision])
    parameters = describe_parameters(model, stand_ins)
    fakes = [stand_ins.of(tensor.detach(), lower=True) for tensor in tensors]
    programs = Programs(model, in_spec, loss_fn, stand_ins, fakes)
    canonical = {fqn: info.fqn for info in parameters for fqn in (info.fqn, *info.aliases)}

    def read(repeats: Repeats | None) -> tuple[Reader, Graph, tuple[str, ...]]:
        program = programs.export(repeats)
        write_out(program.graph_module, lambda target: target in RULES or target in TABLE or is_read(target))
        names = {PREFIX + name: fqn for name, fqn in canonical.items()}
        calls = () if repeats is None else repeats.calls
        reader = Reader(program, names, parameters, PREFIX, calls, gaps=gaps)
        return reader, *reader.read(input_names, programs.returned.loss)

    repeats: Repeats | None = None
    for hide in (True, False) if repeated_once else ():
        repeats = Repeats(model, canonical, hide=hide)
        try:
            reader, graph, updates = read(repeats)
            break
        except UnrepeatableError:
            continue
        except UnsupportedError:
            if not repeats.hidden.inside:  # else a parameter that was hidden may have been used
                raise
    else:
        repeats = None
        reader, graph, updates = read(None)
    refuse_complex(graph)
    returned = programs.returned
    refuse_unsteady(
        returned.left, lambda: programs.unset(repeats, returned.left), lambda: programs.export(None, twice=True)
    )
    assert returned.spec is not None
    return Traced(
        graph=graph,
        parameters=parameters,
        input_names=input_names,
        calling=called,
        in_spec=in_spec,
        out_spec=returned.spec,
        loss_output=returned.loss,
        updates=updates,
        gaps=reader.gaps,
        constants=reader.constants,
    )


def _call(given: Any, loss_fn: Loss | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call that the example inputs stand for; with a loss function, ``target`` is a keyword."""
    if isinstance(given, Mapping):
        if loss_fn is not None and "target" not in given:
            raise UsageError(f"with loss_fn, example_inputs needs an entry 'target'; it has {', '.join(given)}")
        return (), dict(given)
    if isinstance(given, torch.Tensor):
        given = (given,)
    if not isinstance(given, (tuple, list)):
        raise UsageError(f"example_inputs is a tuple or a dict of tensors, not {type(given).__name__}")
    if loss_fn is None:
        return tuple(given), {}
    if len(given) < 2:
        raise UsageError("with loss_fn, the last of example_inputs is the target: (*inputs, target)")
    return tuple(given[:-1]), {"target": given[-1]}

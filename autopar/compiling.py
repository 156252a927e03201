"""From a model to what the search works on: traced, canonical, folded."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from autopar.arguments import Arguments
from autopar.finding import Prepared
from autopar.heap import settled_heap
from autopar.passes.candidate import StoredParameter
from autopar.passes.extents import layers
from autopar.passes.fold import fold
from autopar.passes.fold.gaps import UnfilledError, fill
from autopar.passes.prepare import as_is, canonical_graph, input_dims, prepare
from autopar.passes.trace import Traced, trace
from autopar.room import with_room
from autopar.runtime.hooks import refuse_hooks


@dataclass(frozen=True, kw_only=True, eq=False)
class Readied(Prepared):
    """A traced model as the passes see it."""

    traced: Traced


def ready(model: nn.Module, example_inputs: Any, arguments: Arguments, **how: bool) -> Readied:
    """Trace, canonicalize and fold; ``how`` is handed to ``prepare``.

    Raises TraceError, UnsupportedError, UsageError.
    """
    start = time.perf_counter()
    refuse_hooks(model)
    with settled_heap():
        if not how:
            with contextlib.suppress(UnfilledError):
                return with_room(lambda: _ready(model, example_inputs, arguments, start, gaps=True))
        return with_room(lambda: _ready(model, example_inputs, arguments, start, gaps=False, **how))


def _ready(
    model: nn.Module, example_inputs: Any, arguments: Arguments, start: float, *, gaps: bool, **how: bool
) -> Readied:
    """``gaps``: long chains of equal layers are traced and folded in short, which may raise UnfilledError."""
    traced = trace(
        model, example_inputs, loss_fn=arguments.loss_fn, mixed_precision=arguments.mixed_precision, gaps=gaps
    )
    after_trace = time.perf_counter()
    graph = canonical_graph(traced.graph, rng=arguments.rng)
    settings = arguments.settings(input_dims(graph))
    stored, missing = stored_parameters(traced), 0
    if how:
        made = prepare(graph, traced.loss_output, stored, settings, **how)
    else:
        folded, missing = fill(fold(graph, loss=traced.loss_output), traced.gaps)
        made = as_is(folded, traced.loss_output, stored, settings)
    if layers(made) < arguments.stages and "folded" not in how:
        # fewer repeated layers than pipeline stages: these are cut between any two operations
        if traced.gaps:
            raise UnfilledError
        made = prepare(graph, traced.loss_output, stored, settings, folded=False)
    tied = tuple((info.fqn, *info.aliases) for info in traced.parameters if info.aliases)
    seconds = {"trace_s": after_trace - start, "fold_s": time.perf_counter() - after_trace}
    return Readied(traced=traced, model=made, graph_nodes=len(graph.nodes) + missing, tied=tied, seconds=seconds)


def stored_parameters(traced: Traced) -> Mapping[str, StoredParameter]:
    """Parameters, buffers and constants by name."""
    found = {
        info.fqn: StoredParameter(
            dtype=info.type.dtype, shape=info.type.shape, compute_dtype=info.compute_dtype,
            trainable=info.trainable, buffer=info.buffer,
        )
        for info in traced.parameters
    }  # fmt: skip
    for node in traced.graph.sources("constant"):
        kind = node.result.type
        found[str(node.attr("fqn"))] = StoredParameter(
            dtype=kind.dtype, shape=kind.shape, compute_dtype=kind.dtype, trainable=False, buffer=True
        )
    return found

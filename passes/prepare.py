"""From a traced graph to what the search works on: the training program's graph, folded, with its facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autopar.ir.errors import UsageError
from autopar.ir.graph import Graph
from autopar.ir.live import live, live_nodes
from autopar.ir.program import RNG_INPUT
from autopar.ir.verify import verify
from autopar.passes.build import Model
from autopar.passes.candidate import Settings, StoredParameter
from autopar.passes.canonicalize import canonicalize
from autopar.passes.constrain import settled, told_apart
from autopar.passes.draws import open_draws
from autopar.passes.facts import facts
from autopar.passes.fold import fold
from autopar.passes.losses import open_losses
from autopar.passes.positions import instantiate_rules
from autopar.passes.randomness import number_draws
from autopar.passes.strategies import node_shapes
from autopar.passes.unfold import apart
from autopar.passes.unrounded import unrounded


def canonical_graph(graph: Graph, *, rng: str = "exact") -> Graph:
    """What the search works on: canonical, live, cross-entropy in its parts, random numbers by hash."""
    found = open_losses(open_draws(canonicalize(live(graph)), rng=rng))
    verify(found, after="canonicalize")
    return found


def needed_for(graph: Graph, value: str) -> frozenset[str]:
    """First results of the main graph's nodes that ``value`` depends on."""
    return frozenset(node.results[0].name for node in live_nodes(graph.nodes, (value,), inputs=False))


def input_dims(graph: Graph) -> dict[str, tuple[int | None, int | None]]:
    """(batch dim, sequence dim) of each input.

    The batch is dim 0 of the first input that has dims, and dim 0 of every input of the same extent; the
    sequence is dim 1 of token-like inputs (integers, or vectors a position).
    """
    shapes = {str(node.attr("name")): node.result.type for node in graph.sources("input")}
    state = shapes.pop(RNG_INPUT, None)
    batch = next((kind.shape[0] for kind in shapes.values() if kind.shape), None)
    found: dict[str, tuple[int | None, int | None]] = {}
    for name, kind in shapes.items():
        first = 0 if kind.shape and kind.shape[0] == batch else None
        tokens = len(kind.shape) >= 2 and (not kind.is_float or len(kind.shape) == 3)
        found[name] = (first, 1 if tokens and first == 0 else None)
    return found if state is None else {**found, RNG_INPUT: (None, None)}


def prepare(
    graph: Graph,
    loss: int | None,
    parameters: Mapping[str, StoredParameter],
    settings: Settings,
    *,
    folded: bool = True,
    shared: bool = True,
) -> Model:
    """Requires: ``graph`` from ``canonical_graph``; ``loss`` is the index of the loss among its outputs.

    ``shared=False`` searches every call of a block by itself, ``folded=False`` sees no blocks at all (then the
    whole model is one unit of overlap, ZeRO and recomputation). Raises UsageError for a model without a loss, and what
    ``settled`` raises of constraints.
    """
    return as_is(fold(graph, loss=loss) if folded else graph, loss, parameters, settings, shared=shared)


def as_is(
    graph: Graph,
    loss: int | None,
    parameters: Mapping[str, StoredParameter],
    settings: Settings,
    *,
    shared: bool = True,
) -> Model:
    """``prepare`` for a graph that is as it is to be searched."""
    if loss is None:
        raise UsageError(
            "the model returns no loss; pass labels among the example inputs, or loss_fn=(output, target) -> loss"
        )
    found = live(unrounded(number_draws(graph)))
    return settled_model(apart(found) if not shared else found, loss, parameters, settings)


def settled_model(graph: Graph, loss: int, parameters: Mapping[str, StoredParameter], settings: Settings) -> Model:
    """The model of a graph whose draws are numbered. Raises what ``settled`` raises of constraints."""
    settings = replace(settings, constraints=settled(graph, settings.constraints))
    found = told_apart(graph, settings.constraints)
    verify(found, after="fold")
    known = facts(found)
    return Model(
        graph=found, rules=instantiate_rules(found), facts=known, shapes=node_shapes(found, known),
        parameters=parameters, settings=settings, loss=found.outputs[loss],
        live=needed_for(found, found.outputs[loss]),
    )  # fmt: skip

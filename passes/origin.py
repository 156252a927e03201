"""A prepared model as the data that a plan keeps of it, and back: no trace, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autopar.ir.graph import Graph
from autopar.ir.plan_origin import Origin
from autopar.ir.text import parse_graph, print_graph
from autopar.ir.types import TensorType
from autopar.passes.build import Model
from autopar.passes.candidate import Settings, StoredParameter
from autopar.passes.positions import all_graphs
from autopar.passes.prepare import settled_model


def origin_of(model: Model) -> Origin:
    """What ``model_of`` needs beside the parameters' types, which the fingerprint has."""
    graph = model.graph
    return Origin(
        graph=print_graph(graph),
        sources={
            f"{part.name}/{node.results[0].name}": node.source
            for part in all_graphs(graph) for node in part.nodes if node.results and node.source
        },
        loss=graph.outputs.index(model.loss),
        parameters={fqn: _written(stored) for fqn, stored in sorted(model.parameters.items())},
    )  # fmt: skip


def model_of(origin: Origin, types: Mapping[str, str], settings: Settings) -> Model:
    """The model that was planned. ``types``: of the parameters as they are stored, by name.

    Raises IRError for a graph that is none, and what ``settled`` raises of constraints.
    """
    graph = parse_graph(origin.graph)
    graph = _with_sources(replace(graph, blocks=tuple(_with_sources(b, origin) for b in graph.blocks)), origin)
    parameters = {fqn: _read(text, TensorType.parse(types[fqn])) for fqn, text in origin.parameters.items()}
    return settled_model(graph, origin.loss, parameters, settings)


def _written(stored: StoredParameter) -> str:
    kind = "buffer" if stored.buffer else "" if stored.trainable else "frozen"
    return f"{stored.compute_dtype} {kind}".rstrip()


def _read(text: str, stored: TensorType) -> StoredParameter:
    dtype, _, kind = text.partition(" ")
    return StoredParameter(
        dtype=stored.dtype, shape=stored.shape, compute_dtype=dtype, trainable=not kind, buffer=kind == "buffer"
    )


def _with_sources(graph: Graph, origin: Origin) -> Graph:
    def known(first: str) -> str:
        return origin.sources.get(f"{graph.name}/{first}", "")

    return replace(
        graph, nodes=tuple(replace(n, source=known(n.results[0].name)) if n.results else n for n in graph.nodes)
    )

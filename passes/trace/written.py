"""Which of a model's tensors an exported program may write to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from autopar.passes.trace.writes import is_write, tracks_statistics


def written(program: torch.export.ExportedProgram, names: Mapping[str, str]) -> frozenset[str]:
    """Names of parameters and buffers, all of them where that cannot be told. ``names``: by those in the program."""
    inputs = program.graph_signature.input_specs
    targets = {spec.arg.name: names[str(spec.target)] for spec in inputs if str(spec.target) in names}
    stored = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in targets]
    owners: dict[int, set[str]] = {}
    for node in stored:
        owners.setdefault(_storage(node), set()).add(targets[node.name])
    found = set[str]()
    for part in program.graph_module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        given = {_storage(node) for node in part.graph.nodes if node.op == "placeholder"}
        for storage in map(_storage, _targets(part.graph)):
            if storage in owners:
                found |= owners[storage]
            elif part is not program.graph_module and storage in given:  # of whatever it stands for outside
                return frozenset(targets.values())
    return frozenset(found)


def _targets(graph: fx.Graph) -> Iterator[fx.Node]:
    """What calls of a graph write to."""
    for node in graph.nodes:
        if tracks_statistics(node):
            yield from node.args[3:5]
        elif is_write(node):
            arguments: Any = node.target._schema.arguments
            changed = [(at, argument.name) for at, argument in enumerate(arguments) if argument.is_write]
            given = [node.args[at] if at < len(node.args) else node.kwargs.get(name) for at, name in changed]
            yield from (each for each in given if isinstance(each, fx.Node))


def _storage(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else 0

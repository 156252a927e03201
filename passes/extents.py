"""What of a model the outer choices depend on: batch, sequence length, repeated layers."""

from __future__ import annotations

from autopar.passes.build import Model


def layers(model: Model) -> int:
    """Calls of repeated blocks, between which a pipeline may be cut."""
    return sum(int(str(node.attr("count"))) for node in model.graph.nodes if node.target == "call")


def extents(model: Model) -> tuple[int | None, int | None]:
    """Global batch and sequence length, by the inputs."""
    shapes = {str(node.attr("name")): node.result.type.shape for node in model.graph.sources("input")}
    dims = [(shapes[name], dim) for name, dim in model.settings.inputs.items() if name in shapes]
    batch = next((shape[b] for shape, (b, _) in dims if b is not None), None)
    return batch, next((shape[s] for shape, (_, s) in dims if s is not None), None)

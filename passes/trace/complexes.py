"""Complex values: rotary embeddings turn pairs of features by them. What else is done with them is refused."""

from __future__ import annotations

from autopar.ir.errors import UnsupportedError
from autopar.ir.graph import Graph, Node
from autopar.passes import canonical_view_rules
from autopar.passes.trace.dtypes import TORCH_DTYPES

# Views, and what else is tested with complex values; canonical rules and prices of all others know real numbers only.
_KNOWN = frozenset({
    *canonical_view_rules.RULES, "buffer", "constant", "aten.polar.default", "aten.view_as_real.default",
    "aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.neg.default", "aten.index.Tensor",
})  # fmt: skip


def refuse_complex(graph: Graph) -> None:
    """Raise UnsupportedError for a complex parameter, input or output, and for an operation that knows none."""
    values = graph.values()
    for node in graph.nodes:
        read = (values[name] for name in node.uses())
        found = next((value.type for value in (*node.results, *read) if value.type.is_complex), None)
        if found is not None and node.target not in _KNOWN:
            raise _error(found.dtype, f"in {node.target}", node)
    for name in graph.outputs:
        if values[name].type.is_complex:
            raise _error(values[name].type.dtype, "as an output of the model", graph.producers()[name])


def _error(dtype: str, what: str, node: Node) -> UnsupportedError:
    where = node.source or node.attr("name") or node.attr("fqn")
    return UnsupportedError(
        f"element type {str(TORCH_DTYPES[dtype]).removeprefix('torch.')} is not supported {what} ({where}); complex "
        f"values may be buffers, and made, added, multiplied, viewed and indexed: torch.polar, torch.view_as_complex, "
        f"torch.view_as_real"
    )

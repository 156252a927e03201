"""A product and the bias that is added to it as one operation, as a plain model has them.

The IR keeps them apart, for a product over a split dim is summed before the bias may be added. Where nothing stands
between the two, the sum alone would read and write the result once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from autopar.ir.biases import products_with_bias
from autopar.ir.graph import Graph, Node


def with_biases(graph: Graph, once: Mapping[str, bool]) -> tuple[tuple[Node, ...], dict[str, bool]]:
    """The nodes with each such product at the place of its sum, and ``once`` (``program.build``) by the new names.

    The bias is the product's third operand. A value that anything else reads, or that is returned, is made as before.
    """
    products = {name: made for name, made in products_with_bias(graph).items() if name not in once}
    taken = {found.result.name for found in products.values()}
    nodes = []
    for node in graph.nodes:
        name = node.results[0].name
        if name in products:
            made = products[name]
            nodes.append(replace(made, results=node.results, operands=(*made.operands, node.operands[1])))
        elif name not in taken:
            nodes.append(node)
    names = {made.result.name: name for name, made in products.items()}
    return tuple(nodes), {names.get(name, name): kept for name, kept in once.items()}


def matmul_with_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x @ weight + bias`` of a matrix ``weight``, whose gradient comes in its own order: not so by ``F.linear``."""
    return torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], weight.shape[1])

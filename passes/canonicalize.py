"""Rewrite a traced graph into a small vocabulary, so that later passes need few rules.

First every node is written again by the rule of its operation (views, arithmetic, products, losses), with
the flattening of leading dims moved out of the way; then masks that are known are put in closed form.

What changed its spelling on the way (dims are never negative, sizes always explicit):

    views       aten.reshape.default {shape}, aten.permute.default {dims} without dims of size 1,
                aten.expand.default {size} of equal rank, aten.slice.Tensor {dim, start, end, step?},
                aten.split_with_sizes.default {split_sizes, dim}, aten.cat.default {dim}
    casts       aten.to.dtype {dtype}; gradients are cut by autopar.detach
    products    aten.linear.default (x, w), aten.matmul.default (x, y); a bias is an aten.add.Tensor after it
    arithmetic  aten.add|sub|mul|div|eq|ne|lt|le|gt|ge.Tensor (x, y), or (x) {other} with a number;
                aten.logical_and|or|not.default; no alpha, no beta
    reductions  aten.sum.dim_IntList {dim, keepdim?, dtype?}; a mean: that and aten.div.Tensor {other: count}
    constants   aten.full.default {size, fill_value, dtype}, aten.arange.start_step {start, end, step, dtype}
    losses      see canonical_losses
    batch_norm  written out with sums over the batch, so that sharded batches have the statistics of the whole
    buffers     autopar.assign (y, (buffer, …), (new, …)): y, and the buffers hold the new values from then on
    windows     see canonical_spatial
    indexing    see canonical_indexing
    attention   aten.scaled_dot_product_attention.default (q, k, v, mask?) {is_causal?, scale?, dropout_p?, …}
"""

from __future__ import annotations

from collections.abc import Mapping

from autopar.ir.graph import Graph, renamed
from autopar.passes import (
    canonical_arith,
    canonical_batch_norm,
    canonical_compound,
    canonical_indexing,
    canonical_losses,
    canonical_products,
    canonical_spatial,
    canonical_view_rules,
)
from autopar.passes.canonical_emit import Emitter, finished
from autopar.passes.canonical_flatten import broadcast_or_sink
from autopar.passes.canonical_masks import fold_masks
from autopar.passes.canonical_slices import merge_slices
from autopar.passes.canonical_views import Rule

RULES: Mapping[str, Rule] = {
    **canonical_view_rules.RULES,
    **canonical_arith.RULES,
    **canonical_products.RULES,
    **canonical_losses.RULES,
    **canonical_batch_norm.RULES,
    **canonical_spatial.RULES,
    **canonical_compound.RULES,
    **canonical_indexing.RULES,
}


def canonicalize(graph: Graph) -> Graph:
    """The graph in canonical form.

    Requires: a graph as traced: one level, no layouts. Ensures: the same outputs and gradients; equal
    views and parameter-free nodes once, no dead nodes; ``canonicalize(canonicalize(g)) == canonicalize(g)``.
    """
    return merge_slices(fold_masks(spell(graph), Emitter(broadcast_or_sink)))


def spell(graph: Graph) -> Graph:
    """Every operation in its canonical spelling."""
    em = Emitter(broadcast_or_sink)
    names: dict[str, str] = {}
    for node in graph.nodes:
        em.source = node.source
        rule = RULES.get(node.target, canonical_arith.plain)
        results = rule(em, renamed(node, names))
        names.update((old.name, new) for old, new in zip(node.results, results, strict=True))
    return finished(graph, em.nodes, tuple(names[name] for name in graph.outputs))

"""Rows in order of their experts, all of which are here: products with their matrices, and sums.

``ends``: after how many rows each expert ends.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def of_each(rows: Tensor, weights: Tensor, ends: list[int], *, transposed: bool) -> Tensor:
    """``rows`` of each expert times its matrix, [rows, out], of weights [E, out, in], or [E, in, out] transposed."""
    turned = weights if transposed else weights.transpose(1, 2)
    made = rows.new_empty(rows.shape[0], turned.shape[2])
    for expert, (first, last) in enumerate(itertools.pairwise((0, *ends))):
        if first < last:
            torch.mm(rows[first:last], turned[expert], out=made[first:last])
    return made


def of_weights(out: Tensor, rows: Tensor, weights: Tensor, ends: list[int], *, transposed: bool) -> Tensor:
    """The gradient of the weights that made rows whose gradients are ``out`` of ``rows``."""
    made = torch.zeros_like(weights)
    for expert, (first, last) in enumerate(itertools.pairwise((0, *ends))):
        if first < last:
            left, right = (rows, out) if transposed else (out, rows)
            torch.mm(left[first:last].t(), right[first:last], out=made[expert])
    return made


def summed(rows: Tensor, order: Tensor, shape: torch.Size) -> Tensor:
    """Rows of the index' places ``order``, those of each token added up: [T, columns], of an index [T, K]."""
    tokens, each = shape
    placed = rows.new_zeros(tokens * each, rows.shape[1])
    placed[order] = rows
    return placed.view(tokens, each, rows.shape[1]).sum(1)


def spread(bias: Tensor, ends: Tensor, bounds: list[int]) -> Tensor:
    """Of each expert's bias a row for each of its rows. ``bounds``: ``ends`` as numbers."""
    return bias.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)), 0, output_size=bounds[-1])


def bias_gradient(of_rows: Tensor, bounds: list[int]) -> Tensor:
    """The rows of each expert added up."""
    return torch.stack([of_rows[first:last].sum(0) for first, last in itertools.pairwise((0, *bounds))])

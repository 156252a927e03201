"""The operations of our own: plain differentiable functions of local tensors.

``start`` is the global index of the first element that this device holds, already summed over the mesh
axes; ``dtype`` is the element type of the result as the IR declares it. Vocabulary-parallel
cross-entropy is ``row_max``, ``cross_entropy_stats`` and ``cross_entropy_from_stats`` with a max and a
sum reduction between them: three numbers a row are reduced and the logits are never gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Sum of the cross-entropy of ``logits[..., v]`` over targets that are not ``ignore_index``."""
    return F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        target.reshape(-1),
        weight,
        ignore_index=ignore_index,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def count_targets(
    target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100, dtype: torch.dtype
) -> Tensor:
    """Number, or total class weight, of the targets that are not ``ignore_index``: a 0-dim float."""
    valid = target != ignore_index
    if weight is None:
        return valid.sum().to(dtype)
    return (weight[torch.where(valid, target, 0)] * valid).sum().to(dtype)


def row_max(logits: Tensor) -> Tensor:
    """Largest value over the last dim, outside autograd: any shift of the logits gives the same loss."""
    return logits.detach().amax(dim=-1)


class _CrossEntropyStats(torch.autograd.Function):
    """Keeps the logits alone; plain autograd would hold three more tensors of their size in backward."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, index: Tensor, inside: Tensor, top: Tensor, dtype: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(logits, index, inside, top)
        shifted = _wide(logits) - _wide(top).unsqueeze(-1)
        picked = torch.where(inside, shifted.gather(-1, index).squeeze(-1), 0.0)
        return torch.stack((shifted.exp_().sum(dim=-1), picked), dim=-1).to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        logits, index, inside, top = ctx.saved_tensors
        into = (_wide(logits) - _wide(top).unsqueeze(-1)).exp_()
        gradient = gradients[0].to(into.dtype)
        into.mul_(gradient[..., :1])
        into.scatter_add_(-1, index, torch.where(inside, gradient[..., 1], 0.0).unsqueeze(-1))
        return into.to(logits.dtype), None, None, None, None


def cross_entropy_stats(
    logits: Tensor,
    target: Tensor,
    top: Tensor,
    *,
    start: int = 0,
    ignore_index: int = -100,
    dtype: torch.dtype,
) -> Tensor:
    """[..., 2]: this shard's sum of exp(logits - top), and the target's logit - top if it is here, else 0."""
    classes = logits.shape[-1]
    inside = (target >= start) & (target < start + classes) & (target != ignore_index)
    index = torch.where(inside, target - start, 0).unsqueeze(-1)
    result: Tensor = _CrossEntropyStats.apply(logits, index, inside, top, dtype)  # type: ignore[no-untyped-call]
    return result


def cross_entropy_from_stats(stats: Tensor, target: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Sum over the valid positions of log(sum of exp) - picked logit, from reduced ``stats[..., 2]``."""
    rows = stats[..., 0].log() - stats[..., 1]
    return torch.where(target != ignore_index, rows, 0.0).sum()


def embedding_shard(weight: Tensor, ids: Tensor, *, start: int = 0, padding_idx: int | None = None) -> Tensor:
    """Rows of the ids that lie in this shard of the table, zeros for all others."""
    rows = weight.shape[0]
    inside = (ids >= start) & (ids < start + rows)
    local_padding = None
    if padding_idx is not None and padding_idx >= 0 and start <= padding_idx < start + rows:
        local_padding = padding_idx - start
    found = F.embedding(torch.where(inside, ids - start, 0), weight, local_padding)
    return torch.where(inside.unsqueeze(-1), found, 0.0)


def sdpa_rows(q: Tensor, k: Tensor, v: Tensor, *, start: int = 0, scale: float | None = None) -> Tensor:
    """Causal attention of the query rows ``start`` … of the sequence over the whole keys and values.

    Fewer heads of keys than of queries are grouped heads.
    """
    rows = q.shape[-2]
    seen = min(start + rows, k.shape[-2])  # keys after the last query row count for none of them
    row = torch.arange(start, start + rows, device=q.device).unsqueeze(-1)
    mask = torch.arange(seen, device=q.device) <= row
    return F.scaled_dot_product_attention(
        q,
        k[..., :seen, :],
        v[..., :seen, :],
        attn_mask=mask,
        scale=scale,
        enable_gqa=q.shape[-3] != k.shape[-3],
    )


def pick(x: Tensor, index: Tensor, *, lead: int) -> Tensor:
    """``x[b…, index[b…, k…]]`` for each of the first ``lead`` dims b of both: rows pick elements of their own."""
    rows = [
        torch.arange(x.shape[dim], device=x.device).reshape(-1, *(1,) * (index.dim() - dim - 1)) for dim in range(lead)
    ]
    return x[(*rows, index)]


def detach(x: Tensor) -> Tensor:
    """The value without its gradient."""
    return x.detach()


def assign(x: Tensor, buffers: tuple[Tensor, ...], news: tuple[Tensor, ...]) -> Tensor:
    """The value; that the buffers hold the new values is for whoever runs the graph to do."""
    del buffers, news
    return x


def _wide(x: Tensor) -> Tensor:
    """At least float32: sums of exponentials do not fit a 16-bit mantissa."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": cross_entropy,
    "count_targets": count_targets,
    "row_max": row_max,
    "cross_entropy_stats": cross_entropy_stats,
    "cross_entropy_from_stats": cross_entropy_from_stats,
    "embedding_shard": embedding_shard,
    "sdpa_rows": sdpa_rows,
    "pick": pick,
    "detach": detach,
    "assign": assign,
}

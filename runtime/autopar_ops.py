"""The operations of our own: plain differentiable functions of local tensors.

``start`` is the global index of the first element that this device holds, already summed over the mesh
axes; ``dtype`` is the element type of the result as the IR declares it. Cross-entropy, experts and
the delta rule have files of their own: ``cross_entropy.py``, ``experts.py`` and ``delta_rule.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autopar.runtime import cross_entropy as losses
from autopar.runtime.delta_rule import delta_rule
from autopar.runtime.exchange import exchanged
from autopar.runtime.experts import expert_bias, experts


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


def experts_here(
    x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None = None,
    kept: Tensor | None = None, *, gate: str, transposed: bool = False, kept_factor: float = 1.0, start: int = 0,
    among: int = 0, exchange: str = "", inside: int = 0, stride: int = 0, groups: tuple[str, ...] = (),
) -> Tensor:  # fmt: skip
    """Experts of this device, from ``start`` on; with ``groups`` those of the other devices as well.

    ``among``, ``exchange`` and ``inside`` are for prices and for whoever finds the groups.
    """
    del among, exchange, inside
    given = (x, index, weight, up, down, up_bias, kept)
    how: dict[str, Any] = {"gate": gate, "transposed": transposed, "kept_factor": kept_factor, "start": start}
    return exchanged(*given, **how, stride=stride, groups=groups) if groups else experts(*given, **how)


def as_complex(x: Tensor) -> Tensor:
    """Pairs along the last dim as complex numbers: a view where they lie in memory as such."""
    *others, last = x.stride()
    fits = last == 1 and all(stride % 2 == 0 for stride in others) and x.storage_offset() % 2 == 0
    return torch.view_as_complex(x if fits else x.clone(memory_format=torch.contiguous_format))


def detach(x: Tensor) -> Tensor:
    """The value without its gradient."""
    return x.detach()


class _Sloped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        ctx.dtype = x.dtype
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (slope,) = ctx.saved_tensors
        return gradients[0], (gradients[0] * slope).to(ctx.dtype), None


def sloped(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    """The value; ``x`` gets its gradient times ``slope``, element by element."""
    return _Sloped.apply(value, x, slope)  # type: ignore[no-any-return, no-untyped-call]


def assign(x: Tensor, buffers: tuple[Tensor, ...], news: tuple[Tensor, ...]) -> Tensor:
    """The value; that the buffers hold the new values is for whoever runs the graph to do."""
    del buffers, news
    return x


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(losses, name) for name in losses.__all__},
    "embedding_shard": embedding_shard,
    "sdpa_rows": sdpa_rows,
    "pick": pick,
    "as_complex": as_complex,
    "detach": detach,
    "sloped": sloped,
    "assign": assign,
    "experts": experts_here,
    "expert_bias": expert_bias,
    "delta_rule": delta_rule,
}

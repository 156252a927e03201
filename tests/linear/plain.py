"""The gated delta rule token by token, in the element type that it is given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def recurrent(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, *, use_qk_l2norm_in_kernel: bool = False,
    **unused: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """S ← exp(g) S, then S ← S + β k (v − kᵀ S)ᵀ, and the result is qᵀ S / √d; shapes as of ``autopar.delta_rule``."""
    del unused
    each = value.shape[2] // query.shape[2]
    query, key = (x.repeat_interleave(each, dim=2) for x in (query, key))
    if use_qk_l2norm_in_kernel:
        query, key = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    decay = (g if g.dim() == 4 else g.unsqueeze(-1)).exp()
    state = value.new_zeros(*value.shape[:1], *value.shape[2:3], key.shape[-1], value.shape[-1])
    made = []
    for q, k, v, scale, rate in zip(*(x.unbind(1) for x in (query, key, value, decay, beta)), strict=True):
        state = state * scale.unsqueeze(-1)
        missing = v - torch.einsum("bhd,bhdv->bhv", k, state)
        state = state + torch.einsum("bhd,bhv->bhdv", k * rate.unsqueeze(-1), missing)
        made.append(torch.einsum("bhd,bhdv->bhv", q, state) / q.shape[-1] ** 0.5)
    return torch.stack(made, 1).to(query.dtype), None


def bounded(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **how: Any) -> tuple[Tensor, None]:
    """The same of any numbers as decays and rates: a state neither grows nor turns over."""
    return recurrent(query, key, value, -g.abs(), beta.sigmoid(), **how)

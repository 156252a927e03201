"""Linear attention by a gated delta rule: the model's own function, on the batches and heads of one device."""

from __future__ import annotations

import importlib

from torch import Tensor


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, function: str, chunk: int, normalized: bool
) -> Tensor:
    """Queries and keys [b, s, h, d], values [b, s, h·r, v], decay [b, s, h·r] or [b, s, h·r, d], beta [b, s, h·r].

    ``function``: its module and name. Result: [b, s, h·r, v] in the type of the queries.
    """
    place, _, name = function.rpartition(".")
    own = getattr(importlib.import_module(place), name)
    result: Tensor = own(q, k, v, g=g, beta=beta, chunk_size=chunk, use_qk_l2norm_in_kernel=normalized)[0]
    return result

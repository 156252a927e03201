"""When two sets of tensors count as the same result."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from autopar.ir.errors import VerificationError

# Below this share of the model's largest entry, a tensor is noise around an exact zero.
NOISE_SHARE = 1e-3


def compare(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, tol: float, what: str) -> float:
    """Largest error relative to what is allowed at ``tol`` = 1; raises VerificationError above ``tol``.

    For every tensor ``max|a - b| <= tol * max(max|b|, 1e-3 * the largest entry of all)``. Names the first
    tensor that differs, in the order of ``expected``.
    """
    missing = [name for name in expected if name not in found]
    if missing:
        raise VerificationError(f"{what}: {missing[0]} is missing from the sharded run")
    largest = max((_largest(tensor) for tensor in expected.values()), default=0.0)
    worst = 0.0
    for name, reference in expected.items():
        tensor = found[name].to(reference.device)
        if tensor.shape != reference.shape:
            raise VerificationError(
                f"{what}: {name} has shape {list(tensor.shape)}, not {list(reference.shape)}"
            )
        scale = max(_largest(reference), NOISE_SHARE * largest)
        difference = _largest(tensor.double() - reference.double())
        if not difference <= tol * scale:  # NaN differs
            raise VerificationError(
                f"{what}: {name} differs by {difference:.3g}, allowed {tol * scale:.3g} (tolerance {tol:g})",
                details={"name": name, "difference": difference, "allowed": tol * scale},
            )
        worst = max(worst, difference / scale if scale else 0.0)
    return worst


def _largest(tensor: Tensor) -> float:
    if tensor.numel() == 0:
        return 0.0
    return float(tensor.detach().abs().max()) if tensor.dtype != torch.bool else float(tensor.any())

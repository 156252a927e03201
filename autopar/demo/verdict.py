"""What the demo claims at its end, and the error it ends with where the claim does not hold."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.ir.errors import VerificationError

LIMIT = 1e-4


def largest_difference(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Of two loss curves of equal length; NaN where a loss is NaN."""
    differences = [abs(a - b) for a, b in zip(losses, reference, strict=True)]
    return next((d for d in differences if d != d), max(differences))


def judge(losses: Sequence[float], reference: Sequence[float]) -> None:
    """Raise ``VerificationError`` unless the curves are equal to ``LIMIT`` and the loss fell."""
    difference = largest_difference(losses, reference)
    if not difference <= LIMIT:
        at = next(i for i, (a, b) in enumerate(zip(losses, reference, strict=True)) if not abs(a - b) <= LIMIT)
        raise VerificationError(
            f"the loss curves differ by {difference:.2e}, more than {LIMIT:.0e}\n"
            f"first at step {at + 1}: {losses[at]:.6f} on several processes, {reference[at]:.6f} on one\n"
            f"the sharded program does not compute what the model does: please report it",
            details={"difference": difference, "step": at},
        )
    first, last = ends(losses)
    if not last < first:
        raise VerificationError(
            f"the loss did not fall: {first:.4f} at the start, {last:.4f} at the end of {len(losses)} steps",
            details={"first": first, "last": last},
        )


def ends(losses: Sequence[float]) -> tuple[float, float]:
    """Mean loss of the first and of the last tenth of the steps."""
    n = max(1, len(losses) // 10)
    return sum(losses[:n]) / n, sum(losses[-n:]) / n

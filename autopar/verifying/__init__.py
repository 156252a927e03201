"""Does a plan compute what one device computes? Tried on this machine, at a size that it can carry."""

from __future__ import annotations

from autopar.verifying.verified import Verified
from autopar.verifying.verify import verify

__all__ = ["Verified", "verify"]

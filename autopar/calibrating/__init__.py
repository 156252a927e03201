"""Measure this machine and write a cost profile of it."""

from __future__ import annotations

from autopar.calibrating.calibrate import calibrate
from autopar.calibrating.document import Document, toml

__all__ = ["Document", "calibrate", "toml"]

"""Tiny models of the families that users train, each with a batch: unmodified classes, random weights."""

from __future__ import annotations

from tests.families.decoders import DECODERS
from tests.families.encoders import ENCODERS
from tests.families.family import Family
from tests.families.mixtures import MIXTURES
from tests.families.plain import PLAIN
from tests.families.vision import VISION

FAMILIES: dict[str, Family] = {family.name: family for family in (*DECODERS, *MIXTURES, *ENCODERS, *VISION, *PLAIN)}

__all__ = ["FAMILIES", "Family"]

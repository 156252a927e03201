"""Layers of our own: ordinary modules, on one device by themselves and traced like any other."""

from autopar.nn.moe import MoE, MoEOutput
from autopar.nn.router import Routed, Router

__all__ = ["MoE", "MoEOutput", "Routed", "Router"]

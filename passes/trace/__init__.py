"""From an ``nn.Module`` and example inputs to a Graph. The only pass that imports torch."""

from autopar.passes.trace.structure import Structure
from autopar.passes.trace.trace import trace
from autopar.passes.trace.traced import ParamInfo, Traced

__all__ = ["ParamInfo", "Structure", "Traced", "trace"]

"""Replace repeated parts of a graph by blocks and calls."""

from autopar.passes.fold.fold import fold

__all__ = ["fold"]

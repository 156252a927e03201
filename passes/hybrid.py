"""HSDP: ZeRO cuts a parameter among the devices of a node, and every node has a copy.

An axis of data parallelism that crosses nodes is two here: neighbours *within* a node and one from each node *across*.
Both are matters of storage alone; the program sees whole parameters and knows the axis as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from autopar.ir.program import Parameter
from autopar.passes.candidate import Inside


def cut_inside(inside: Inside, owned: Sequence[str], size: Callable[[str], int]) -> tuple[int, ...]:
    """Along each of a parameter's axes, among how many neighbours it is cut; () where that is all of them or none."""
    known = dict(inside)
    found = tuple(known.get(axis, size(axis)) for axis in owned)
    return found if 1 < math.prod(found) < math.prod(map(size, owned)) else ()


def parts_of(parameter: Parameter, size: Callable[[str], int]) -> int:
    """Into how many parts ZeRO cuts the parameter, if its level is above 0."""
    return math.prod(parameter.inside or map(size, parameter.runtime_axes))


def kept_texts(parameter: Parameter, sizes: Mapping[str, int]) -> dict[str, str]:
    """For each axis over which ZeRO cuts the parameter: ``S(0)``, or among which neighbours."""
    among = parameter.inside or tuple(sizes[axis] for axis in parameter.runtime_axes)
    place = f"S({parameter.cut_dim(math.prod(among))})"
    return {
        axis: place if count == sizes[axis] else f"{place} in {count}s"
        for axis, count in zip(parameter.runtime_axes, among, strict=True) if count > 1
    }  # fmt: skip

"""Large tensors on the CPU whose memory is used again once they are freed.

What is larger than the blocks that the C library keeps is mapped anew each time, and the system clears one page after
the other when it is first written: for a mixture's gradients that takes longer than writing them. A GPU's allocator
keeps what was freed; for these tensors so does this pool, in huge pages where the system has them. Of each size it
holds as much as was in use at once.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import defaultdict
from contextlib import suppress

import torch
from torch import Tensor

LEAST_BYTES = 1 << 25  # the most that glibc's M_MMAP_THRESHOLD grows to, mallopt(3)
_HUGE_BYTES = 1 << 21

_freed: defaultdict[int, list[mmap.mmap]] = defaultdict(list)  # by size in bytes


def empty_like(tensor: Tensor) -> Tensor:
    """As ``torch.empty_like``, of reused memory where it is large, contiguous and on the CPU."""
    if not pooled(tensor):
        return torch.empty_like(tensor)
    size = tensor.numel() * tensor.element_size()
    freed = _freed[size]
    try:
        block = freed.pop()
    except IndexError:
        block = _mapped(size)
    view = memoryview(block)  # what the tensor's storage holds: it goes when the last tensor of that storage does
    weakref.finalize(view, freed.append, block).atexit = False
    return torch.frombuffer(view, dtype=tensor.dtype, count=tensor.numel()).view(tensor.shape)


def pooled(tensor: Tensor) -> bool:
    """Whether memory for another tensor like this one is used again."""
    large = tensor.numel() * tensor.element_size() >= LEAST_BYTES
    return tensor.device.type == "cpu" and large and tensor.is_contiguous()


def _mapped(size: int) -> mmap.mmap:
    """Memory of this process alone: a fork has its own copy."""
    rounded = math.ceil(size / _HUGE_BYTES) * _HUGE_BYTES
    block = mmap.mmap(-1, rounded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without huge pages
        block.madvise(mmap.MADV_HUGEPAGE)
    return block

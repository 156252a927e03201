"""Calls of blocks: one compiled function for all instances, each with its own parameters and holder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint, noop_context_fn

from autopar.ir.errors import IRError
from autopar.ir.graph import Graph, Node
from autopar.runtime.holders import Holder
from autopar.runtime.tape import contexts
from autopar.runtime.updates import Updates

# Reads a tensor that no block owns, by name.
Read = Callable[[str], Tensor]


def slots_of(node: Node) -> list[tuple[str, ...]]:
    """For each instance of a ``call`` node the names behind the block's slots."""
    params = node.attr("params", ())
    if not isinstance(params, tuple):
        raise IRError(f"call of @{node.attr('block')}: params is {params!r}")
    return [tuple(map(str, names)) if isinstance(names, tuple) else () for names in params]


def in_slot_order(block: Graph, names: Sequence[str]) -> list[str]:
    """Names in the order in which the block's module takes them."""
    order = []
    for node in block.nodes:
        if node.target in ("param", "buffer", "constant"):
            slot = node.attr("slot")
            if not isinstance(slot, int):
                raise IRError(f"@{block.name}: {node.result.name} has no slot")
            order.append(names[slot])
    return order


class Instance:
    """One call of a block: runs its module on the tensors that its holder and the root hold.

    ``recompute``: ``full``, ``selective`` or None. ``written``: buffers whose new values end the module's results.
    """

    def __init__(
        self,
        module: Callable[..., Any],
        names: Sequence[str],
        holder: Holder | None,
        read: Read,
        recompute: str | None,
        written: Sequence[str],
        updates: Updates,
    ) -> None:
        self.module = module
        self.holder = holder
        self.recompute = recompute
        self.written = written
        self.updates = updates
        self.readers: list[Callable[[], Tensor]] = []
        for name in names:
            owner = None if holder is None else holder.find(name)
            self.readers.append(_reader(read if owner is None else owner.read, name))
        self.changing = [at for at, name in enumerate(names) if name in written]

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self.holder is None:
            return tuple(self.run(*inputs))
        self.holder.function = self.run  # set each time: the programs of both modes share their holders
        results: tuple[Tensor, ...] = self.holder(*inputs)
        return results

    def run(self, *inputs: Tensor) -> Any:
        """Within the holder's ``forward``, so that parameters are read where they are whole, also again.

        Buffers that change are read once: recomputing needs their values of now, and stores nothing.
        """
        before = [self.readers[at]() for at in self.changing]
        if self.recompute is not None:
            how = contexts if self.recompute == "selective" else noop_context_fn
            results = checkpoint(self.compute, before, *inputs, use_reentrant=False, context_fn=how)
        else:
            results = self.compute(before, *inputs)
        return self.updates.take(results, self.written)

    def compute(self, before: Sequence[Tensor], *inputs: Tensor) -> Any:
        known = dict(zip(self.changing, before, strict=True))
        stored = [known[at] if at in known else reader() for at, reader in enumerate(self.readers)]
        return self.module(*inputs, *stored)


def chain(instances: Sequence[Instance], carried: int, *, collects: bool) -> Callable[..., tuple[Tensor, ...]]:
    """``call`` with a count: the carried values go through all instances, the others enter each.

    ``collects``: what else each returns is returned too, instance after instance.
    """

    def call(*operands: Tensor) -> tuple[Tensor, ...]:
        moving, fixed = operands[:carried], operands[carried:]
        own: list[Tensor] = []
        for instance in instances:
            results = instance(*moving, *fixed)
            moving = results[:carried]
            own += results[carried:] if collects else ()
        return *moving, *own

    return call


def _reader(read: Read, name: str) -> Callable[[], Tensor]:
    return lambda: read(name)

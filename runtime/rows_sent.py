"""Rows to the other devices of a group and back, exactly as many as there are: all_to_all in one step or in two.

In two: inside the node to the neighbour that has the receiver's place on its node, then across to the receiver's node.
So a device has one partner on each other node, where all_to_all in one step has every device of it, and what arrives,
and its order, is the same. Devices of a group are counted node by node: node · neighbours + place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from autopar.runtime.torch_private import group_named


@dataclass(frozen=True, eq=False)
class Way:
    """How rows get from device to device of a group. Every method is a collective of it.

    ``groups``: the name of the group or, in two steps, of the part of it on this node and of the part with this place
    on every node. ``numbers`` int64 [3, devices], on the CPU: how many rows go to each device, how many pass through
    here by the node that they go to and the neighbour that they are from, and how many come from each device. What
    passes is not used in one step.
    """

    groups: tuple[str, ...]
    numbers: Tensor

    @classmethod
    def of(cls, sent: Tensor, groups: tuple[str, ...]) -> tuple[Way, Tensor]:
        """The way of ``sent`` [devices, kinds] rows, and how many of each kind come from each device [devices, kinds].

        ``sent``: how many rows of each kind this device has for each other.
        """
        if len(groups) == 1:
            got, passing = _swapped(sent, groups[0]), sent
        else:
            nodes = _size(groups[1])
            met = _swapped(sent.unflatten(0, (nodes, -1)).transpose(0, 1), groups[0]).transpose(0, 1)
            got, passing = _swapped(met, groups[1]).flatten(0, 1), met.flatten(0, 1)
        return cls(groups, torch.stack((sent, passing, got)).sum(2).cpu()), got

    @property
    def leave(self) -> int:
        """How many rows leave, those that stay here among them."""
        return int(self.numbers[0].sum())

    @property
    def come(self) -> int:
        """How many rows come."""
        return int(self.numbers[2].sum())

    def there(self, rows: Tensor) -> Tensor:
        """Rows in order of the devices that they go to → those that come, in order of where they are from."""
        if len(self.groups) == 1:
            return _sent(rows, self.numbers[0], self.numbers[2], self.groups[0])
        leave, passing, come = self._by_node()
        met = _sent(_turned(rows, leave), leave.sum(0), passing.sum(0), self.groups[0])
        return _sent(_turned(met, passing.T), passing.sum(1), come.sum(1), self.groups[1])

    def back(self, rows: Tensor) -> Tensor:
        """Inverse of ``there``: a row for each that came → one for each that was sent."""
        if len(self.groups) == 1:
            return _sent(rows, self.numbers[2], self.numbers[0], self.groups[0])
        leave, passing, come = self._by_node()
        met = _sent(rows, come.sum(1), passing.sum(1), self.groups[1])
        return _turned(_sent(_turned(met, passing), passing.sum(0), leave.sum(0), self.groups[0]), leave.T)

    def _by_node(self) -> tuple[Tensor, Tensor, Tensor]:
        """``numbers``, each as [nodes, neighbours]."""
        leave, passing, come = self.numbers.view(3, _size(self.groups[1]), -1)
        return leave, passing, come


def _size(group: str) -> int:
    return dist.get_world_size(group_named(group))


def _swapped(parts: Tensor, group: str) -> Tensor:
    """[devices, …]: part i goes to device i, and theirs come."""
    sent = parts.contiguous()
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, group=group_named(group))
    return got


def _sent(rows: Tensor, leave: Tensor, come: Tensor, group: str) -> Tensor:
    """The next ``leave[i]`` rows to device i, of which ``come[i]`` come."""
    got = rows.new_empty(int(come.sum()), *rows.shape[1:])
    dist.all_to_all_single(got, rows.contiguous(), come.tolist(), leave.tolist(), group=group_named(group))
    return got


def _turned(rows: Tensor, numbers: Tensor) -> Tensor:
    """Pieces of ``numbers`` [a, b] rows, in that order, put in the order [b, a]."""
    pieces, (first, second) = rows.split(numbers.flatten().tolist()), numbers.shape
    return torch.cat([pieces[i * second + j] for j in range(second) for i in range(first)])

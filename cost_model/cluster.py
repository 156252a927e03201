"""A cluster: which devices on how many nodes, and the network between them.

Ranks are laid out node by node in the order of ``nodes``, and device by device within a node.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from autopar.cost_model.cluster_file import ClusterFile, NodesTable, check_plain, read_cluster_file
from autopar.cost_model.units import parse_rate_bytes_s
from autopar.ir.errors import UsageError

_SHORTHAND = re.compile(r"\s*(\d{1,7})x(\d{1,7})x([A-Za-z][^\s@]*)\s*(?:@\s*(\S.*?)\s*)?", re.ASCII)
_FORM = "NODESxGPUSxDEVICE[@RATE], such as 8x8xH100-SXM or 2x8xV100-SXM2-32GB@32Gb/s"


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """``count`` equal nodes of ``gpus`` devices; ``intra`` None means the device's own link."""

    count: int
    gpus: int
    device: str
    intra: str | None = None


@dataclass(frozen=True, kw_only=True)
class Network:
    """Between nodes, per node and direction; None: the device's ``inter`` link, ``nics_per_node`` of them."""

    bandwidth_bytes_s: float | None = None
    latency_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a plan is made for. Knows device names only; their figures are in the cost profile."""

    nodes: tuple[NodeGroup, ...]
    network: Network = Network()

    def __post_init__(self) -> None:
        if not self.nodes or any(group.count < 1 or group.gpus < 1 for group in self.nodes):
            raise UsageError("a cluster needs at least one node with at least one device")

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """The shorthand ``NODESxGPUSxDEVICE[@RATE]``; the rate (Gb/s or GB/s) is per node and direction."""
        match = _SHORTHAND.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is not a cluster; write it as {_FORM}, or give a file")
        rate_bytes_s = parse_rate_bytes_s(match[4]) if match[4] else None
        node_group = NodeGroup(count=int(match[1]), gpus=int(match[2]), device=match[3])
        return cls(nodes=(node_group,), network=Network(bandwidth_bytes_s=rate_bytes_s))

    @classmethod
    def from_file(cls, path: str | Path) -> Cluster:
        """A cluster file. Raises ``FileFormatError`` naming key and line of its first mistake."""
        return cls._from_tables(read_cluster_file(Path(path)))

    @classmethod
    def load(cls, spec: str | Path | Cluster) -> Cluster:
        """A cluster as it is, a shorthand, or the path of a file."""
        if isinstance(spec, Cluster):
            return spec
        is_path = isinstance(spec, Path) or spec.endswith(".toml") or Path(spec).is_file()
        return cls.from_file(spec) if is_path else cls.parse(str(spec))

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Cluster:
        """The inverse of ``to_dict``. Raises ``FileFormatError`` naming the first wrong key."""
        plain = check_plain(data)
        nodes = tuple(NodeGroup(**group.model_dump()) for group in plain.nodes)
        return cls(nodes=nodes, network=Network(**plain.network.model_dump()))

    @classmethod
    def _from_tables(cls, tables: ClusterFile) -> Cluster:
        nodes = tuple(_node_group(table) for table in tables.nodes)
        bandwidth_bytes_s, latency_s = tables.network.si()
        return cls(nodes=nodes, network=Network(bandwidth_bytes_s=bandwidth_bytes_s, latency_s=latency_s))

    def to_dict(self) -> dict[str, object]:
        """Plain data for a plan."""
        return asdict(self) | {"nodes": [asdict(group) for group in self.nodes]}

    @property
    def world_size(self) -> int:
        """Devices in all."""
        return sum(group.count * group.gpus for group in self.nodes)

    @property
    def num_nodes(self) -> int:
        """Nodes in all."""
        return sum(group.count for group in self.nodes)

    @property
    def gpus_per_node(self) -> int:
        """Devices on a node; the most where nodes differ."""
        return max(group.gpus for group in self.nodes)

    @property
    def devices(self) -> tuple[str, ...]:
        """The distinct devices, in the order of the nodes."""
        return tuple(dict.fromkeys(group.device for group in self.nodes))

    @property
    def is_homogeneous(self) -> bool:
        """Whether every node has the same number of the same device on the same link."""
        return len({(group.gpus, group.device, group.intra) for group in self.nodes}) == 1

    @property
    def has_equal_nodes(self) -> bool:
        """Whether every node has the same number of devices, of whatever kind."""
        return len({group.gpus for group in self.nodes}) == 1

    def node_sizes(self) -> tuple[int, ...]:
        """Devices of each node, in rank order."""
        per_group = (itertools.repeat(group.gpus, group.count) for group in self.nodes)
        return tuple(itertools.chain.from_iterable(per_group))

    def device_of_rank(self, rank: int) -> str:
        """The device that ``rank`` runs on."""
        left = rank
        for group in self.nodes:
            if 0 <= left < group.count * group.gpus:
                return group.device
            left -= group.count * group.gpus
        raise UsageError(f"rank {rank} is not in a world of {self.world_size}")

    def __str__(self) -> str:
        """The shorthand without the rate; node groups are joined by ``+``."""
        return "+".join(f"{group.count}x{group.gpus}x{group.device}" for group in self.nodes)


def _node_group(table: NodesTable) -> NodeGroup:
    return NodeGroup(count=table.count, gpus=table.gpus, device=table.device, intra=table.intra)

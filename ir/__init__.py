"""Types, mesh, layouts, operations and their sharding rules, graphs and plans: data without torch."""

from autopar.ir.graph import Graph, Node, Value
from autopar.ir.layout import Layout, Partial, Placement, Replicate, Shard
from autopar.ir.mesh import Mesh
from autopar.ir.types import TensorType

__all__ = [
    "Graph",
    "Layout",
    "Mesh",
    "Node",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "TensorType",
    "Value",
]

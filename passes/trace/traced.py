"""What a trace returns."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from autopar.ir.graph import Graph
from autopar.ir.types import TensorType
from autopar.passes.fold.gaps import Gap
from autopar.passes.trace.calling import Calling
from autopar.passes.trace.structure import Structure


@dataclass(frozen=True, kw_only=True)
class ParamInfo:
    """A parameter or buffer of the model.

    ``type`` is the type as stored, ``compute_dtype`` what the graph sees under mixed precision.
    ``fqn`` is the first name in the model's order, ``aliases`` are the other names of the same tensor.
    """

    fqn: str
    type: TensorType
    compute_dtype: str
    trainable: bool
    buffer: bool = False
    persistent: bool = True
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Traced:
    """The model's forward as a Graph, and what is needed to call it as the model is called.

    ``graph.outputs`` are the tensors of the model's output, flattened; ``updates`` names the buffers that the
    forward changes, which ``autopar.assign`` nodes do. ``input_names`` are the ``name`` attributes of the
    ``input`` nodes, in the order of ``in_spec``; ``calling`` finds them in a call. ``constants`` holds the
    tensors of the ``constant`` nodes.
    ``loss_output`` is the index of the loss in ``graph.outputs``; None if the model returns none.
    ``gaps``: what the graph leaves out of long chains, if that was asked for.
    """

    graph: Graph
    parameters: tuple[ParamInfo, ...]
    input_names: tuple[str, ...]
    in_spec: Structure
    calling: Calling
    out_spec: Structure
    loss_output: int | None
    updates: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    constants: dict[str, torch.Tensor] = field(default_factory=dict)

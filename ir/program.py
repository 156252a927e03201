"""A lowered program: what every device runs, as data.

The main graph and its blocks carry a layout on every value; attributes are *local* (sizes of reshapes
and the like), collectives are explicit ``comm.*`` nodes, and the text is the same for all ranks: where
an operation depends on the rank, its attribute ``start`` lists (axis, stride) and the offset is the sum
of coordinate · stride.

``comm.KIND(%x) {axis, backward, dim, outer, dim_to, outer_to, reduce, owner}`` is one ``convert.Step``:
KIND forward, ``backward`` in the backward pass. ``owner="runtime"`` marks the conversions of parameters
over data axes that FSDP2 performs; the runtime's program emits none for them, the simulator does.
``owner="step"``: the sum of a parameter's gradient that waits for the end of the step (``passes/once.py``).

Microbatches are one more axis, in time: the mesh of a program ends with the axis ``mb`` if there is more
than one. No value crosses it but the gradients (accumulated) and the loss (summed); what needs the whole
batch, such as the number of valid labels, stands in ``prologue``, which runs once a step before the first
microbatch: its results are inputs of the main graph under the same names.

Where devices differ, ``shares`` says how many microbatches each data-parallel rank runs, in rank order, of all into
which the batch is cut (size of dp times ``microbatches``): ranks run the same program, some more often. Then ``dp`` and
``mb`` are one axis: microbatch i of rank r is number ``r · microbatches + i`` of the whole batch, where i may be
negative or lie beyond the rank's even part. The loss is this rank's summand, which the runtime adds up once a step; the
prologue works on the even parts.

A program that draws random numbers has one more input, ``autopar.rng``, which the runtime fills: a number of
seed and step, the count of draws so far, and the microbatch. An operation that draws takes it as its last
operand; its attribute ``site`` numbers the draw, and ``index`` says for each dim of the result which factors
an axis owns, (size, axis), major first. So it knows where in the whole each of its elements stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autopar.ir.graph import Graph
from autopar.ir.layout import Layout
from autopar.ir.mesh import Mesh
from autopar.ir.types import TensorType

MICROBATCH_AXIS = "mb"
DATA_AXIS = "dp"
RNG_INPUT = "autopar.rng"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter or buffer: global type as stored, layout of the storage, who reduces its gradient.

    ``type`` is the stored type; ``compute_dtype`` what the program sees. ``runtime_axes``: axes over
    which FSDP2 shards the storage or reduces the gradient; on all others the program does, on ``step_axes`` once
    a step, for all parameters together.
    ``inside``: along each of ``runtime_axes``, over how many neighbours the storage is cut, of which every such group
    has a copy (HSDP); () over all.
    ``group``: the holder it belongs to: a call of a block (``layer0/3``) or "" for the root.
    """

    fqn: str
    type: TensorType
    compute_dtype: str
    layout: Layout
    trainable: bool = True
    buffer: bool = False
    runtime_axes: tuple[str, ...] = ()
    inside: tuple[int, ...] = ()
    step_axes: tuple[str, ...] = ()
    group: str = ""

    def cut_dim(self, parts: int) -> int:
        """The dim that ZeRO cuts: the first one, but where it is shorter than ``parts`` one that they divide.

        Of a few experts on each device a part of each, else some devices would have all and others none.
        """
        local = self.layout.local_shape(self.type.shape)
        if not local or local[0] >= parts:
            return 0
        return next((dim for dim, extent in enumerate(local) if extent % parts == 0), 0)


@dataclass(frozen=True, kw_only=True)
class Program:
    """Everything that one device runs in a step.

    ``mesh`` is that of the processes (without ``mb``). ``graph.outputs`` are the loss, if the model has
    one, then whatever else was asked for. ``recompute``: blocks that are recomputed, and how (``selective``,
    ``full``); ``zero`` is the ZeRO level of each block and of the root (""). ``shares``: microbatches of each
    data-parallel rank; () where all run ``microbatches``. ``withheld``: outputs that a microbatch cannot tell, by their
    place, and why; the loss stands there.
    """

    mesh: Mesh
    graph: Graph
    parameters: tuple[Parameter, ...]
    data_axes: tuple[str, ...]
    microbatches: int = 1
    shares: tuple[int, ...] = ()
    prologue: Graph | None = None
    recompute: dict[str, str] = field(default_factory=dict)
    zero: dict[str, int] = field(default_factory=dict)
    loss: str | None = None
    withheld: dict[int, str] = field(default_factory=dict)

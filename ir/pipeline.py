"""A lowered program cut into pipeline stages: each a program of its own, for the devices of one place on ``pp``."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.ir.mesh import Mesh
from autopar.ir.program import Program

PIPELINE_AXIS = "pp"
# What may be written for ``schedule``. Each rank has one stage, or several where the schedule is looped.
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
LOOPED = ("interleaved", "zero_bubble")
LOOPS = 2  # stages of each rank under those


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a stage begins: at a node of the lowered main graph (its first result), at its ``call``-th call.

    As text ``%name`` or ``%name/call``.
    """

    node: str
    call: int = 0

    def __str__(self) -> str:
        return f"{self.node}/{self.call}" if self.call else self.node

    @classmethod
    def parse(cls, text: str) -> Mark:
        node, slash, call = text.rpartition("/")
        return cls(node, int(call)) if slash else cls(text)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """``receives``: values of the stage before, which are inputs of the graph; ``sends``: outputs of the graph.

    The last stage sends nothing: its only output is the loss. ``program.mesh`` has no ``pp`` axis.
    """

    program: Program
    receives: tuple[str, ...]
    sends: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Stages in order; stage i stands at place i modulo the size of ``pp``. ``mesh`` is that of all processes."""

    mesh: Mesh
    schedule: str
    stages: tuple[Stage, ...]

    @property
    def ranks(self) -> int:
        """Places on the pipeline axis."""
        return self.mesh.size(PIPELINE_AXIS)

    def place(self, stage: int) -> int:
        return stage % self.ranks

    def local(self, place: int) -> tuple[int, ...]:
        """The stages of one place."""
        return tuple(range(place, len(self.stages), self.ranks))

    def holders(self, fqn: str) -> tuple[int, ...]:
        """Stages that have the parameter or buffer."""
        return tuple(
            index for index, stage in enumerate(self.stages)
            if any(parameter.fqn == fqn for parameter in stage.program.parameters)
        )  # fmt: skip

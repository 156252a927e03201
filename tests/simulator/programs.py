"""Small lowered programs with known prices: every operation, collective and update takes as long as a table says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autopar.cost_model import Cluster, CostProfile, Group, OpCost
from autopar.cost_model.simulator import Timeline, simulate
from autopar.ir.layout import Layout
from autopar.ir.mesh import Mesh
from autopar.ir.pipeline import Pipeline, Stage
from autopar.ir.program import Parameter, Program
from autopar.ir.text import parse_graph
from autopar.ir.types import TensorType

TIED = Parameter(
    fqn="tied", type=TensorType("f32", (8,)), compute_dtype="f32", layout=Layout.replicated(Mesh(()))
)
# ns of an operation, forward and backward, and of a communication of any size
Prices = Mapping[str, "int | tuple[int, int]"]


class Known(CostProfile):
    """What is not in ``prices`` takes no time."""

    def __init__(self, prices: Prices, base: Path | None = None) -> None:
        super().__init__(base)
        self.prices = prices

    def compute_s(self, op: OpCost, device: str) -> float:
        found = self.prices.get(op.target, 0)
        both = found if isinstance(found, tuple) else (found, 0)
        return both[op.phase == "backward"] / 1e9

    def collective_s(self, kind: str, bytes: int, group: Group) -> float:
        found = self.prices.get(kind, 0)
        assert isinstance(found, int)
        return found / 1e9


def cluster(mesh: Mesh) -> Cluster:
    return Cluster.parse(f"1x{mesh.world_size}xH100-SXM")


def program_of(
    text: str, mesh: Mesh, *, parameters: Mapping[str, tuple[str, ...]] | None = None, zero: int = 0,
    microbatches: int = 1, recompute: Mapping[str, str] | None = None, loss: str | None = None,
) -> Program:  # fmt: skip
    """A program from the text of its graph. ``parameters``: runtime axes of each, which are all f32[8]."""
    graph = parse_graph(text)
    kept = tuple(
        Parameter(
            fqn=fqn, type=TensorType("f32", (8,)), compute_dtype="f32", layout=Layout.replicated(mesh),
            runtime_axes=axes,
        )
        for fqn, axes in (parameters or {}).items()
    )  # fmt: skip
    return Program(
        mesh=mesh, graph=graph, parameters=kept, data_axes=("dp",), microbatches=microbatches,
        recompute=dict(recompute or {}), zero={"": zero, **{block.name: zero for block in graph.blocks}},
        loss=graph.outputs[0] if loss is None else loss or None,
    )  # fmt: skip


def step(program: Program, prices: Prices, *, base: Path | None = None, detail: str | None = None) -> Timeline:
    return simulate(program, cluster(program.mesh), Known(prices, base), optimizer="adamw", detail=detail)


def equal_stages(schedule: str, places: int, loops: int, microbatches: int) -> Pipeline:
    """Stages of one product each, on one parameter: ``aten.linear.default``, with a loss in the last."""
    mesh = Mesh(())
    count = places * loops
    stages = []
    for number in range(count):
        source = f'input() {{name="x{number}"}}'
        last = number == count - 1
        made = f"%x{number + 1}: f32[8,8] = aten.linear.default(%x{number}, %w) {{}}"
        end = "%loss: f32[] = aten.sum.default(%x%d) {}".replace("%d", str(count))
        lines = [f"%x{number}: f32[8,8] = {source}", f'%w: f32[8,8] = param() {{fqn="w{number}"}}', made]
        lines += [end, "return %loss"] if last else [f"return %x{number + 1}"]
        text = "graph @main {\n  " + "\n  ".join(lines) + "\n}\n"
        program = program_of(text, mesh, microbatches=microbatches, loss="loss" if last else "")
        stages.append(
            Stage(
                program=program, receives=(f"x{number}",) if number else (),
                sends=() if last else (f"x{number + 1}",),
            )
        )  # fmt: skip
    return Pipeline(mesh=Mesh((("pp", places),)), schedule=schedule, stages=tuple(stages))


def piped(pipeline: Pipeline, prices: Prices) -> Timeline:
    return simulate(
        pipeline.stages[0].program, cluster(pipeline.mesh), Known(prices), optimizer="adamw", pipeline=pipeline
    )

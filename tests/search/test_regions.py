"""Light operations that are placed as one cost what they do apart, and lose nothing that matters."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from autopar.arguments import check
from autopar.compiling import ready
from autopar.ir.mesh import Mesh
from autopar.models import resolve
from autopar.passes.bounds import Bounds
from autopar.passes.build import Encoded
from autopar.passes.found import UNLIMITED_BYTES
from autopar.passes.grounds import Grounds
from autopar.passes.outer import Candidate
from autopar.passes.positions import positions
from autopar.passes.problem import Problem, Segment
from autopar.passes.regions import Region
from autopar.passes.segments import Choice, Variable
from autopar.passes.solve import solve
from autopar.passes.solve.states import fixed
from autopar.passes.strategies import Joint

SHARES = (1.0, 0.5)  # of the memory that the fastest placement takes
LOST = 1e-3
# Of a value in several layouts all count as kept that some reader may keep; a region has fewer of them than its parts.
OFTEN_KEPT, AMPLE = ("t5-large",), 2.0
MODELS = {
    "llama3-8b": "1x4xH100-SXM", "deepseek-v3": "2x2xA100-SXM-80GB", "gpt2": "1x4xV100-SXM2-32GB",
    "mixtral-8x7b": "1x4xH100-SXM", "t5-large": "1x4xH100-SXM", "qwen3-30b-a3b": "2x2xH100-SXM",
}  # fmt: skip
MESHES = ({"tp": 4}, {"dp": 2, "tp": 2}, {"cp": 4}, {"dp": 4})


@cache
def bounds(name: str, seq_len: int = 128) -> Bounds:
    made = resolve(f"zoo:{name}", batch_size=16, seq_len=seq_len, layers=4)
    arguments = check(cluster=MODELS[name], name=name, mixed_precision="fp16" if "V100" in MODELS[name] else "bf16")
    model = ready(made.model, made.example_inputs, arguments).model
    marks = positions(model.graph, model.rules, model.settings.inputs)
    return Bounds(
        model=model, cluster=arguments.cluster, profile=arguments.profile, positions=marks, memory_bytes=UNLIMITED_BYTES
    )


def encoded(found: Bounds, axes: dict[str, int], count: int = 2) -> tuple[Encoded, Mesh]:
    mesh = Mesh(tuple(axes.items()))
    made = replace(found, grounds=Grounds()).encode(Candidate(mesh=mesh, full=mesh, count=count, fewest=count), None)
    assert made is not None
    return made[0], made[1].mesh


def placed(found: Bounds, axes: dict[str, int]) -> dict[str, list[Joint]]:
    """By block the regions' first ways to be placed."""
    made, _ = encoded(found, axes)
    return {
        name: [one.values[0] for one in variables if isinstance(one.values[0], Joint)]
        for name, variables in made.variables.items()
    }


def targets(found: Bounds, joint: Joint) -> list[str]:
    named = {node.results[0].name: node for node in found.model.graph.blocks[0].nodes}
    return [named[name].target for name in joint.nodes]


def test_a_norm_and_a_rotation_are_one_operation_each() -> None:
    found = bounds("llama3-8b")
    block = found.model.graph.blocks[0]
    kinds = [targets(found, joint) for joint in placed(found, {"tp": 4})[block.name]]
    norms = [kind for kind in kinds if "aten.rsqrt.default" in kind]
    assert len(norms) == 2 and all({"aten.pow.Tensor_Scalar", "aten.mul.Tensor"} < set(kind) for kind in norms)
    assert any({"aten.cat.default", "aten.mul.Tensor", "aten.add.Tensor"} <= set(kind) for kind in kinds)
    assert not any("linear" in target or "attention" in target for kind in kinds for target in kind)


def test_a_router_is_few_operations() -> None:
    found = bounds("deepseek-v3")
    made, _ = encoded(found, {"dp": 2, "tp": 2})
    for block in found.model.graph.blocks:
        nodes = [one for one in made.variables[block.name] if one.kind == "node"]
        assert 3 * len(nodes) < len(block.nodes)


@pytest.mark.parametrize("axes", MESHES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_placed_apart_it_costs_the_same_and_the_best_is_no_better(
    name: str, axes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = bounds(name)
    joint, _ = encoded(found, axes)
    monkeypatch.setattr("autopar.passes.build.regions", lambda *_: dict[str, Region]())
    apart, _ = encoded(found, axes)
    assert sum(map(len, apart.variables.values())) > sum(map(len, joint.variables.values()))
    graph = found.model.graph.name
    parts = [(graph, joint.problem.root, apart.problem.root)]
    parts += [
        (one.segment.name, one.segment, other.segment)
        for one, other in zip(joint.problem.chains, apart.problem.chains, strict=True)
    ]
    for part, one, other in parts:
        fastest = solve(Problem(root=one), memory_bytes=UNLIMITED_BYTES)
        for share in (AMPLE,) if name in OFTEN_KEPT else SHARES:
            memory = int(fastest.bytes * share)
            best, single = (solve(Problem(root=each), memory_bytes=memory, effort=2) for each in (one, other))
            if not (best.found and best.bytes <= memory):
                continue
            assert best.objective_ns >= single.bound_ns
            assert best.bound_ns <= single.objective_ns * (1 + LOST)
            same = pinned(other, apart.variables[part], decisions(joint.variables[part], best.root))
            again = solve(Problem(root=same), memory_bytes=memory if name in OFTEN_KEPT else best.bytes, effort=2)
            assert again.objective_ns == best.objective_ns, part
            assert again.bytes == best.bytes or (again.bytes > best.bytes and name in OFTEN_KEPT), part


def decisions(variables: tuple[Variable, ...], values: tuple[int, ...]) -> dict[tuple[str, str], Choice]:
    """What each variable but hubs decides, of single operations too, by kind and name."""
    found: dict[tuple[str, str], Choice] = {}
    for variable, value in zip(variables, values, strict=True):
        chosen = variable.values[value]
        if isinstance(chosen, Joint):
            found.update({("node", name): own for name, own in zip(chosen.nodes, chosen.strategies, strict=True)})
        elif variable.kind not in ("hub", "need"):
            found[variable.kind, variable.name] = chosen
    return found


def pinned(segment: Segment, variables: tuple[Variable, ...], chosen: dict[tuple[str, str], Choice]) -> Segment:
    return fixed(segment, {
        number: variable.values.index(chosen[variable.kind, variable.name])
        for number, variable in enumerate(variables) if variable.kind not in ("hub", "need")
    })  # fmt: skip


def test_a_norm_may_be_split_along_what_it_adds_up() -> None:
    """The sum of squares is added up within."""
    found = bounds("llama3-8b", seq_len=125)
    block = found.model.graph.blocks[0]
    made, _ = encoded(found, {"tp": 4})
    sums = {node.results[0].name for node in block.nodes if node.target == "aten.sum.dim_IntList"}
    split = [
        one for variable in made.variables[block.name] for one in variable.values if isinstance(one, Joint)
        if any(name in sums and "P" in str(at.results[0]) for name, at in zip(one.nodes, one.strategies, strict=True))
        and "P" not in str(one.strategies[-1].results[0])
    ]  # fmt: skip
    assert split


class Fed(nn.Module):
    """What is split along the hidden size behind its first product is needed whole by the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.first(x) * 2).softmax(-1) + 1
        return nn.functional.mse_loss(self.last(hidden), y)


def test_nothing_is_taken_in_that_would_not_be_split_any_more() -> None:
    arguments = check(cluster="1x4xH100-SXM")
    model = ready(Fed(), (torch.zeros(8, 64), torch.zeros(8, 64)), arguments).model
    marks = positions(model.graph, model.rules, model.settings.inputs)
    found = Bounds(
        model=model, cluster=arguments.cluster, profile=arguments.profile, positions=marks, memory_bytes=1 << 60
    )
    made, _ = encoded(found, {"tp": 4}, count=1)
    producers = {node.results[0].name: node.target for node in model.graph.nodes}
    together = [
        {producers[name] for name in one.values[0].nodes}
        for one in made.variables[model.graph.name] if isinstance(one.values[0], Joint)
    ]  # fmt: skip
    assert any({"aten.mul.Tensor", "aten.gelu.default"} <= kind and "aten.softmax.int" not in kind for kind in together)

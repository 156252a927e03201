"""Folded graph + assignment → ``Program``.

Each graph is lowered once per distinct variant; a call becomes one call for each run of equal variants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeAlias

from autopar.ir.calls import carried, pieces
from autopar.ir.graph import SOURCES, Graph, Node
from autopar.ir.layout import Layout, Partial, R
from autopar.ir.live import live
from autopar.ir.mesh import Mesh
from autopar.ir.program import MICROBATCH_AXIS, Parameter, Program
from autopar.ir.types import TensorType
from autopar.ir.verify import verify
from autopar.passes.assignment import Assignment, Variant
from autopar.passes.build import Model
from autopar.passes.conversions import Conversions
from autopar.passes.early import without_time
from autopar.passes.hybrid import cut_inside
from autopar.passes.lower_graph import CallLayouts, Lowered, lower_graph
from autopar.passes.once import once_a_step
from autopar.passes.prologue import make_prologue
from autopar.passes.withheld import without_withheld

# Of a parameter its name or slot, its layout on the processes, its runtime axes and among how many of each it is cut.
Kept: TypeAlias = tuple[str | int, Layout, tuple[str, ...], tuple[int, ...]]


def lower(model: Model, assignment: Assignment, conversions: Conversions, microbatches: int) -> Program:
    """The program of an assignment.

    Requires: ``assignment`` belongs to ``model``; ``conversions`` prices the same mesh. Ensures: every
    value has a layout, every operand of an operation is in the layout that its strategy needs.
    """
    return _Lowering(model, assignment, conversions, microbatches).run()


@dataclass(eq=False)
class _Lowering:
    model: Model
    assignment: Assignment
    conversions: Conversions
    microbatches: int
    blocks: dict[str, tuple[Variant, Lowered]] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    kept: dict[int, tuple[Kept, ...]] = field(default_factory=dict)  # by identity of ``Lowered``

    def run(self) -> Program:
        mesh = self.assignment.mesh
        graph, withheld = without_withheld(self.model, self.assignment, self.microbatches)
        base = Mesh(tuple(axis for axis in mesh.axes if axis[0] != MICROBATCH_AXIS))
        runs: dict[str, list[tuple[int, str]]] = {}
        calls: dict[str, CallLayouts] = {}
        for node in graph.nodes:
            if node.target == "call":
                name = node.results[0].name
                runs[name] = [
                    (repeat, self._block(variant)) for repeat, variant in self.assignment.calls[name]
                ]
                calls[name] = self._call_layouts(node, runs[name])
        outputs = [self._returned(name) for name in graph.outputs]
        main = lower_graph(
            self.model,
            graph,
            self.assignment.main,
            self.conversions,
            mesh,
            outputs=outputs,
            calls=calls,
            root=True,
        )
        self._parameters(main, self.assignment.main, "")
        nodes = tuple(made for node in main.graph.nodes for made in self._expand(node, runs))
        blocks = tuple(lowered.graph for _, lowered in self.blocks.values())
        lowered = replace(main.graph, nodes=nodes, name="main", blocks=blocks)
        prologue = None
        if main.crossing:
            prologue = make_prologue(self.model, self.assignment.main, self.conversions, main.crossing, base)
        lowered = live(lowered)
        for made in (lowered, *([prologue] if prologue else [])):
            verify(made, after="lower")
        self._unused(base)
        return once_a_step(Program(
            mesh=base, graph=lowered, parameters=tuple(self.parameters.values()), data_axes=self._data_axes(lowered),
            microbatches=self.microbatches, prologue=prologue,
            recompute={n: v.mode.recompute for n, (v, _) in self.blocks.items() if v.mode.recompute != "none"},
            zero={"": self.assignment.main.mode.zero, **{n: v.mode.zero for n, (v, _) in self.blocks.items()}},
            loss=lowered.outputs[graph.outputs.index(self.model.loss)], withheld=dict(withheld),
        ))  # fmt: skip

    def _returned(self, name: str) -> Layout | None:
        """Layout of an output: the loss whole, sums settled but over microbatches, all else as it is made (None)."""
        if name == self.model.loss:
            return Layout.replicated(self.assignment.mesh)
        node = self.model.graph.producers()[name]
        chosen = self.assignment.main.nodes.get(node.results[0].name)
        if chosen is None:
            return None
        layout = chosen.results[[value.name for value in node.results].index(name)]
        sums = [axis for axis in layout.mesh.names if axis != MICROBATCH_AXIS and isinstance(layout[axis], Partial)]
        for axis in sums:
            layout = layout.replace(axis, R)
        return layout if sums else None

    def _block(self, variant: Variant) -> str:
        """Name of the lowered block of this variant, lowered on first sight."""
        for name, (known, _) in self.blocks.items():
            if known == variant:
                return name
        graph = self.model.graph.block(variant.graph)
        lowered = lower_graph(
            self.model, graph, variant, self.conversions, self.assignment.mesh, outputs=[None] * len(graph.outputs),
            calls={}, root=False,
        )  # fmt: skip
        count = sum(known.graph == variant.graph for known, _ in self.blocks.values())
        name = variant.graph if count == 0 else f"{variant.graph}.{count}"
        self.blocks[name] = (variant, replace(lowered, graph=replace(lowered.graph, name=name)))
        return name

    def _call_layouts(self, node: Node, runs: list[tuple[int, str]]) -> CallLayouts:
        order = [
            source.result.name for source in self.model.graph.block(str(node.attr("block"))).sources("input")
        ]
        first, handed = self.blocks[runs[0][1]], carried(node)
        found = [_output_layouts(self.blocks[block][1].graph) for repeat, block in runs for _ in range(repeat)]
        own = (layouts[handed:] for layouts in found) if len(node.results) > handed else ()
        return CallLayouts(
            operands=tuple(first[0].inputs[name] for name in order), results=(*found[-1][:handed], *chain(*own))
        )

    def _expand(self, node: Node, runs: Mapping[str, list[tuple[int, str]]]) -> tuple[Node, ...]:
        """A call as one call a run of equal variants."""
        if node.target != "call":
            return (node,)
        slots = node.attr("params")
        assert isinstance(slots, tuple)
        handed, done, made = carried(node), 0, []
        found = runs[node.results[0].name]
        calls = pieces(node, [repeat for repeat, _ in found], ".run")
        for call, (repeat, block) in zip(calls, found, strict=True):
            layouts = _output_layouts(self.blocks[block][1].graph)[:handed]
            ends = (replace(v, layout=at) for v, at in zip(call.results[:handed], layouts, strict=True))
            made.append(replace(call, results=(*ends, *call.results[handed:])).with_attrs(block=block))
            for offset, names in enumerate(slots[done : done + repeat]):
                assert isinstance(names, tuple)
                group = f"{node.results[0].name}/{done + offset}"
                variant, lowered = self.blocks[block]
                self._parameters(lowered, variant, group, tuple(map(str, names)))
            done += repeat
        return tuple(made)

    def _parameters(self, lowered: Lowered, variant: Variant, group: str, slots: tuple[str, ...] = ()) -> None:
        """Parameters and buffers of the root or of one call. ``slots``: names that fill a block's."""
        if id(lowered) not in self.kept:
            self.kept[id(lowered)] = tuple(_kept(lowered, variant))
        for name, layout, axes, inside in self.kept[id(lowered)]:
            self._parameter(slots[name] if isinstance(name, int) else name, layout, axes, group, inside)

    def _parameter(
        self, fqn: str, layout: Layout, axes: tuple[str, ...], group: str, inside: tuple[int, ...] = ()
    ) -> None:
        stored = self.model.parameters[fqn]
        self.parameters[fqn] = Parameter(
            fqn=fqn, type=TensorType(stored.dtype, stored.shape), compute_dtype=stored.compute_dtype, layout=layout,
            trainable=stored.trainable and not stored.buffer, buffer=stored.buffer, runtime_axes=axes, group=group,
            inside=inside,
        )  # fmt: skip

    def _unused(self, mesh: Mesh) -> None:
        """Parameters that the loss does not depend on are kept whole: they have no gradient."""
        for fqn in self.model.parameters:
            if fqn not in self.parameters:
                self._parameter(fqn, Layout.replicated(mesh), (), "")

    def _data_axes(self, graph: Graph) -> tuple[str, ...]:
        """Axes that split the batch of the inputs, outermost first."""
        axes: dict[str, None] = {}
        for node in graph.sources("input"):
            batch, _ = self.model.settings.inputs.get(str(node.attr("name")), (None, None))
            if node.result.layout is not None and batch is not None:
                axes.update(
                    {axis: None for _, _, axis in node.result.layout.owners(batch) if axis != MICROBATCH_AXIS}
                )
        return tuple(axes)


def _kept(lowered: Lowered, variant: Variant) -> Iterator[Kept]:
    """How each parameter and buffer of a lowered graph is kept."""
    for node in lowered.graph.nodes:
        if node.target in SOURCES and node.target != "input":
            slot = node.attr("slot")
            assert node.result.layout is not None
            layout, axes = without_time(node.result.layout), lowered.runtime_axes.get(node.result.name, ())
            inside = cut_inside(variant.mode.inside, axes, layout.mesh.size) if variant.mode.zero else ()
            yield slot if isinstance(slot, int) else str(node.attr("fqn")), layout, axes, inside


def _output_layouts(graph: Graph) -> tuple[Layout, ...]:
    values = graph.values()
    layouts = tuple(values[name].layout for name in graph.outputs)
    assert all(layout is not None for layout in layouts)
    return layouts  # type: ignore[return-value]

"""A small language model and the program that a lowering would make of it, written by hand.

Embedding (tied with the head), blocks ``h + W2 relu(W1 h + b1) + b2``, cross-entropy. ``tp`` splits the
vocabulary and the hidden features, ``dp`` the batch, ``mb`` is microbatches. No part of autopar above
``ir`` is used, so these programs test the runtime alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autopar.ir.convert import convert
from autopar.ir.graph import Graph, Node, Value, sorted_attrs
from autopar.ir.layout import RSTAR, Layout, P, Partial, Placement, R, Shard
from autopar.ir.mesh import Mesh
from autopar.ir.program import Parameter, Program
from autopar.ir.types import Attr, TensorType

VOCABULARY, WIDTH, HIDDEN, BATCH, SEQUENCE, LAYERS = 16, 8, 16, 8, 4, 3
IDS = (BATCH, SEQUENCE)


class Model(nn.Module):
    """The model as its user writes it."""

    def __init__(self, seed: int = 0, layers: int = LAYERS) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=torch.float64)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        h = self.embed(ids)
        for layer in self.layers:
            h = layer(h)
        return F.cross_entropy(self.head(h).flatten(0, 1), labels.flatten()), h


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, HIDDEN, dtype=torch.float64)
        self.fc2 = nn.Linear(HIDDEN, WIDTH, dtype=torch.float64)

    def forward(self, h: Tensor) -> Tensor:
        result: Tensor = h + self.fc2(F.relu(self.fc1(h)))
        return result


def batch(step: int = 0) -> dict[str, Tensor]:
    """A global batch; one target in three is ignored, unevenly over the ranks."""
    generator = torch.Generator().manual_seed(100 + step)
    ids = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), generator=generator)
    labels = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), generator=generator)
    labels[: BATCH // 2, :2] = -100
    labels[0] = -100
    return {"ids": ids, "labels": labels}


@dataclass
class Draft:
    """A lowered graph in the making."""

    mesh: Mesh
    nodes: list[Node] = field(default_factory=list)

    def add(
        self,
        target: str,
        operands: tuple[Value, ...],
        shape: tuple[int, ...],
        layout: Layout,
        dtype: str = "f64",
        **attrs: Attr,
    ) -> Value:
        value = Value(f"v{len(self.nodes)}", TensorType(dtype, shape), layout)
        self.nodes.append(
            Node(
                results=(value,),
                target=target,
                operands=tuple(o.name for o in operands),
                attrs=sorted_attrs(attrs),
            )
        )
        return value

    def source(
        self, target: str, shape: tuple[int, ...], layout: Layout, dtype: str = "f64", **attrs: Attr
    ) -> Value:
        return self.add(target, (), shape, layout, dtype, **attrs)

    def to(self, value: Value, runtime: tuple[str, ...] = (), **placements: Placement) -> Value:
        """Conversion on the named axes; those over ``runtime`` belong to FSDP2."""
        assert value.layout is not None
        wanted = value.layout
        for axis, placement in placements.items():
            if axis in self.mesh.names:
                wanted = wanted.replace(axis, placement)
        for step in convert(value.layout, wanted, value.type.shape, grad=value.type.is_float):
            owner = {"owner": "runtime"} if step.axis in runtime else {}
            value = self.add(
                f"comm.{step.kind}",
                (value,),
                value.type.shape,
                step.after,
                value.type.dtype,
                axis=step.axis,
                backward=step.backward,
                dim=step.dim,
                outer=step.outer,
                dim_to=step.dim_to,
                outer_to=step.outer_to,
                reduce=step.reduce,
                **owner,
            )
        return value

    def done(self, name: str, *outputs: Value, blocks: tuple[Graph, ...] = ()) -> Graph:
        return Graph(
            name=name,
            nodes=tuple(self.nodes),
            outputs=tuple(o.name for o in outputs),
            blocks=blocks,
            mesh=self.mesh,
        )


def program(
    *,
    dp: int = 1,
    cp: int = 1,
    tp: int = 1,
    microbatches: int = 1,
    zero: int = 0,
    recompute: str | None = None,
    layers: int = LAYERS,
    root_zero: int | None = None,
    graph_owned: bool = False,
    compute: str = "f64",
    inside: tuple[int, ...] = (),
) -> Program:
    """The model's training step over ``dp`` × ``cp`` × ``tp`` devices.

    ``graph_owned``: the program reduces the gradients of the biases over dp; fc1's are stored sharded there.
    ``compute``: the element type in which parameters are used. ``inside``: neighbours along the data axes among which
    parameters are cut.
    """
    mesh = Mesh((("dp", dp), *([("cp", cp)] if cp > 1 else []), ("tp", tp)))
    whole = Mesh((*mesh.axes, ("mb", microbatches))) if microbatches > 1 else mesh
    root = zero if root_zero is None else root_zero
    by_device: dict[str, Placement] = {"dp": Shard(0), **({"cp": Shard(1)} if cp > 1 else {})}
    by_batch = {**by_device, **({"mb": Shard(0, dp)} if microbatches > 1 else {})}
    stored = {p.fqn: p for p in _parameters(mesh, zero, root, layers, graph_owned, compute, inside)}

    main = Draft(whole)
    ids = main.source("input", IDS, Layout.of(whole, by_batch), "i64", name="ids")
    labels = main.source("input", IDS, Layout.of(whole, by_batch), "i64", name="labels")
    count = main.source("input", (), Layout.replicated(whole), name="count")
    over = _over(whole, stored["embed.weight"].layout)
    table = main.source("param", (VOCABULARY, WIDTH), over, compute, fqn="embed.weight")
    table = main.to(table, ("dp", "cp"), dp=RSTAR, cp=RSTAR, mb=RSTAR)
    h = _layers(main, _embedded(main, table, ids, by_batch), layers)
    loss = _loss(main, h, table, labels, count, by_batch)
    return Program(
        mesh=mesh,
        graph=main.done("main", loss, h, blocks=(_block(whole, by_batch, stored),)),
        parameters=tuple(stored.values()),
        data_axes=("dp",),
        microbatches=microbatches,
        prologue=_prologue(mesh, by_device),
        recompute={"layer": recompute} if recompute else {},
        zero={"layer": zero, "": root},
        loss=loss.name,
    )


def _embedded(main: Draft, table: Value, ids: Value, split: dict[str, Placement]) -> Value:
    """Each device looks up the rows that it has; the sum over tp has all."""
    layout = Layout.of(main.mesh, {**split, "tp": P})
    h = main.add("autopar.embedding_shard", (table, ids), (*IDS, WIDTH), layout, start=_rows(main.mesh))
    return main.to(h, tp=R)


def _layers(main: Draft, h: Value, layers: int) -> Value:
    leaves = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    names = tuple(tuple(f"layers.{i}.{leaf}" for leaf in leaves) for i in range(layers))
    assert h.layout is not None
    return main.add("call", (h,), h.type.shape, h.layout, block="layer", count=layers, carried=1, params=names)


def _loss(
    main: Draft, h: Value, table: Value, labels: Value, count: Value, split: dict[str, Placement]
) -> Value:
    """Cross-entropy of logits whose classes are split over tp, over the number of targets."""
    mesh = main.mesh
    classes = Layout.of(mesh, {**split, "tp": Shard(2)})
    logits = main.add("aten.linear.default", (main.to(h, tp=RSTAR), table), (*IDS, VOCABULARY), classes)
    top = main.add("autopar.row_max", (logits,), IDS, Layout.of(mesh, {**split, "tp": Partial("max")}))
    top = main.to(top, tp=R)
    summed = Layout.of(mesh, {**split, "tp": P})
    stats = main.add(
        "autopar.cross_entropy_stats", (logits, labels, top), (*IDS, 2), summed, start=_rows(mesh)
    )
    stats = main.to(stats, tp=R)
    by_batch = Layout.of(mesh, dict.fromkeys(split, P))
    loss = main.add("autopar.cross_entropy_from_stats", (stats, labels), (), by_batch)
    loss = main.to(loss, dp=R, cp=R, mb=R)
    return main.add("aten.div.Tensor", (loss, count), (), Layout.replicated(mesh))


def _prologue(mesh: Mesh, split: dict[str, Placement]) -> Graph:
    """The number of targets in the whole batch."""
    draft = Draft(mesh)
    labels = draft.source("input", IDS, Layout.of(mesh, split), "i64", name="labels")
    counted = draft.add("autopar.count_targets", (labels,), (), Layout.of(mesh, dict.fromkeys(split, P)))
    number = draft.to(counted, dp=R, cp=R)
    nodes = tuple(_rename(node, {number.name: "count"}) for node in draft.nodes)
    return Graph(name="prologue", mesh=mesh, outputs=("count",), nodes=nodes)


def _rows(mesh: Mesh) -> Attr:
    """Where a device's part of the vocabulary starts."""
    return (("tp", VOCABULARY // mesh.size("tp")),)


def _block(whole: Mesh, split: dict[str, Placement], stored: dict[str, Parameter]) -> Graph:
    draft = Draft(whole)
    h = draft.source("input", (BATCH, SEQUENCE, WIDTH), Layout.of(whole, split), name="h")
    slots = []
    for slot, leaf in enumerate(("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")):
        kind = stored[f"layers.0.{leaf}"]
        value = draft.source(
            "param", kind.type.shape, _over(whole, kind.layout), kind.compute_dtype, slot=slot
        )
        tp = Shard(0) if leaf == "fc1.bias" else kind.layout["tp"]
        slots.append(draft.to(value, kind.runtime_axes, dp=RSTAR, cp=RSTAR, mb=RSTAR, tp=tp))
    w1, b1, w2, b2 = slots
    hidden, columns = (BATCH, SEQUENCE, HIDDEN), Layout.of(whole, {**split, "tp": Shard(2)})
    u = draft.add("aten.linear.default", (draft.to(h, tp=RSTAR), w1), hidden, columns)
    u = draft.add("aten.add.Tensor", (u, b1), hidden, columns)
    u = draft.add("aten.relu.default", (u,), hidden, columns)
    y = draft.add("aten.linear.default", (u, w2), h.type.shape, Layout.of(whole, {**split, "tp": P}))
    y = draft.to(y, tp=R)
    y = draft.add("aten.add.Tensor", (y, b2), h.type.shape, Layout.of(whole, split))
    y = draft.add("aten.add.Tensor", (h, y), h.type.shape, Layout.of(whole, split))
    return draft.done("layer", y)


def _parameters(
    mesh: Mesh, zero: int, root: int, layers: int, graph_owned: bool, compute: str,
    inside: tuple[int, ...],
) -> list[Parameter]:
    shapes: list[tuple[str, tuple[int, ...], int | None, str]] = [
        ("embed.weight", (VOCABULARY, WIDTH), 0, "")
    ]
    for i in range(layers):
        group = f"layer/{i}"
        shapes += [
            (f"layers.{i}.fc1.weight", (HIDDEN, WIDTH), 0, group),
            (f"layers.{i}.fc1.bias", (HIDDEN,), 0, group),
            (f"layers.{i}.fc2.weight", (WIDTH, HIDDEN), 1, group),
            (f"layers.{i}.fc2.bias", (WIDTH,), None, group),
        ]
    found = []
    for fqn, shape, dim, group in shapes:
        placements: dict[str, Placement] = {} if dim is None else {"tp": Shard(dim)}
        owned = graph_owned and fqn.endswith("bias")
        if owned and fqn.endswith("fc1.bias"):
            placements = {"dp": Shard(0), "tp": Shard(0, mesh.size("dp"))}
        if not owned and (zero if group else root) == 3:  # FSDP2 cuts what tp has left
            placements["dp"] = Shard(0, mesh.size("tp") if dim == 0 else 1)
        found.append(
            Parameter(
                fqn=fqn,
                type=TensorType("f64", shape),
                compute_dtype=compute,
                layout=Layout.of(mesh, placements),
                runtime_axes=() if owned else ("dp", "cp") if "cp" in mesh.names else ("dp",),
                inside=inside if (zero if group else root) and not owned else (),
                group=group,
            )
        )
    return found


def _over(mesh: Mesh, layout: Layout) -> Layout:
    return Layout.of(mesh, dict(zip(layout.mesh.names, layout.placements, strict=True)))


def _rename(node: Node, names: dict[str, str]) -> Node:
    results = tuple(Value(names.get(v.name, v.name), v.type, v.layout) for v in node.results)
    operands = tuple(names.get(o, o) if isinstance(o, str) else o for o in node.operands)
    return Node(results=results, target=node.target, operands=operands, attrs=node.attrs)

"""Random graphs with all that the text can say."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from autopar.ir.graph import Graph, Node, Operand, Value, sorted_attrs
from autopar.ir.layout import RSTAR, Layout, P, Partial, Placement, R, Shard
from autopar.ir.mesh import Mesh
from autopar.ir.types import DTYPE_BYTES, Attr, TensorType

MESHES = (
    None,
    Mesh(),
    Mesh((("dp", 2),)),
    Mesh((("dp", 2), ("tp", 4))),
    Mesh((("a", 3), ("b", 2), ("c", 2))),
)
TARGETS = (
    "aten.add.Tensor",
    "aten.__and__.Tensor",
    "aten.linear.default",
    "autopar.detach",
    "comm.all_gather",
)

numbers = st.one_of(st.integers(), st.floats(allow_nan=False))
leaves: st.SearchStrategy[Attr] = st.one_of(st.none(), st.booleans(), numbers, st.text())
attr_values: st.SearchStrategy[Attr] = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5
)
attributes = st.dictionaries(st.from_regex(r"[a-z_]\w{0,5}", fullmatch=True), attr_values, max_size=3)
types = st.builds(
    TensorType, st.sampled_from(sorted(DTYPE_BYTES)), st.lists(st.integers(0, 64), max_size=3).map(tuple)
)


@st.composite
def layouts(draw: st.DrawFn, mesh: Mesh, shape: tuple[int, ...]) -> Layout:
    """A layout that fits ``shape``."""
    layout = Layout.replicated(mesh)
    for axis, size in mesh.axes:
        choices: list[Placement] = [R, RSTAR, P, Partial("max")]
        for dim, extent in enumerate(shape):
            choices += [
                Shard(dim, outer) for outer in range(1, 13) if extent and extent % (outer * size) == 0
            ]
        fits = [chosen for chosen in choices if layout.replace(axis, chosen).problem(shape) is None]
        layout = layout.replace(axis, draw(st.sampled_from(fits)))
    return layout


@st.composite
def values(draw: st.DrawFn, name: str, mesh: Mesh | None) -> Value:
    type_ = draw(types)
    layout = None if mesh is None or draw(st.booleans()) else draw(layouts(mesh, type_.shape))
    return Value(name, type_, layout)


@st.composite
def flat_graphs(draw: st.DrawFn, name: str, *, slots: bool = False) -> Graph:
    """Inputs, parameters and operations; a block has slots."""
    mesh = draw(st.sampled_from(MESHES))
    nodes: list[Node] = []
    names: list[str] = []

    def results(count: int) -> tuple[Value, ...]:
        fresh = [f"{draw(st.sampled_from(['', 'x_', 'é.', 'a-b/']))}{len(names) + i}" for i in range(count)]
        names.extend(fresh)
        return tuple(draw(values(item, mesh)) for item in fresh)

    for at in range(draw(st.integers(0, 2))):
        nodes.append(Node(results=results(1), target="input", attrs=(("name", f"in{at}"),)))
    for at in range(draw(st.integers(0, 2))):
        attrs: dict[str, Attr] = (
            {"slot": at} if slots else {"fqn": f"{name}.{at}", "trainable": draw(st.booleans())}
        )
        nodes.append(Node(results=results(1), target="param", attrs=sorted_attrs(attrs)))
    for _ in range(draw(st.integers(0, 4))):
        item = st.none() | st.sampled_from(names) if names else st.none()
        operand: st.SearchStrategy[Operand] = st.one_of(item, st.lists(item, max_size=3).map(tuple))
        operands = tuple(draw(st.lists(operand, max_size=3)))
        target, attrs = draw(st.sampled_from(TARGETS)), draw(attributes)
        count = draw(st.integers(0, 3))
        nodes.append(
            Node(results=results(count), target=target, operands=operands, attrs=sorted_attrs(attrs))
        )
    outputs = tuple(draw(st.lists(st.sampled_from(names), max_size=3))) if names else ()
    return Graph(name=name, nodes=tuple(nodes), outputs=outputs, mesh=mesh)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A main graph that ends with a call of each of its blocks; all verify."""
    graph = draw(flat_graphs("main"))
    blocks = []
    for at in range(draw(st.integers(0, 2))):
        block = draw(flat_graphs(f"block{at}", slots=True))
        inputs = block.sources("input")
        kept = tuple(node.result.name for node in inputs)[: draw(st.integers(0, len(inputs)))]
        block = replace(block, outputs=kept)
        blocks.append(block)
        graph = replace(graph, nodes=(*graph.nodes, *_call(block, at, draw(st.integers(1, 3)))))
    return replace(graph, blocks=tuple(blocks))


def _call(block: Graph, at: int, count: int) -> tuple[Node, ...]:
    """Inputs for the block, and its call."""
    inputs = [node.result.type for node in block.sources("input")]
    given = tuple(
        Node(results=(Value(f"given{at}_{i}", type_),), target="input", attrs=(("name", f"given{at}_{i}"),))
        for i, type_ in enumerate(inputs)
    )
    slots = len(block.sources("param"))
    params = tuple(tuple(f"call{at}.{i}.{slot}" for slot in range(slots)) for i in range(count))
    carried = len(block.outputs)
    attrs = sorted_attrs({"block": block.name, "carried": carried, "count": count, "params": params})
    results = tuple(Value(f"left{at}_{i}", inputs[i]) for i in range(carried))
    operands = tuple(node.result.name for node in given)
    return (*given, Node(results=results, target="call", operands=operands, attrs=attrs))


def same(left: object, right: object) -> bool:
    """Equality that tells 1 from 1.0 and True."""
    return left == right and repr(left) == repr(right)

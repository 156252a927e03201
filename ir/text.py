"""The text of a graph, each way: ``parse_graph(print_graph(g)) == g``.

    block @block0 {
      %0: f32[4] = input() {name="in0"}
      ...
    }
    graph @main mesh(dp=2, tp=4) {
      %x: bf16[8,1024]{dp:S(0), tp:R} = input() {name="x"}
      %a: f32[4], %b: f32[4] = aten.split.Tensor(%x) {dim=0, split_size=4}
      %y: f32[4] = aten.index.Tensor(%a, [%b, none]) {}
      return %a, %y
    }

One node a line. Blocks come before the main graph. ``mesh(...)`` and ``{layout}`` are left out where
there is none. Attributes: ``none``, ``true``, ``false``, numbers as Python writes them, strings as JSON
does, tuples in parentheses. ``Node.source`` is not part of the text.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from autopar.ir.errors import IRError
from autopar.ir.graph import Graph, Node, Operand, Value
from autopar.ir.layout import Layout
from autopar.ir.mesh import Mesh
from autopar.ir.types import Attr, TensorType

_NAME = r"[\w.$/-]+"
_HEADER = re.compile(rf"(graph|block) @({_NAME})(?: mesh\(([^)]*)\))? \{{$")
_RESULT = re.compile(rf"%({_NAME}): (\w+)\[([\d,]*)\](?:\{{([^}}]*)\}})?")
_TARGET = re.compile(r"[\w.:$-]+(?=\()")
_VALUE = re.compile(rf"%({_NAME})")
_KEY = re.compile(r"(\w+)=")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(r"-?inf|nan|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_WORDS: dict[str, Attr] = {"none": None, "true": True, "false": False}


def print_graph(graph: Graph) -> str:
    """The text of ``graph`` and its blocks, ending with a newline."""
    return "".join([*(_print(block, "block") for block in graph.blocks), _print(graph, "graph")])


def print_node(node: Node) -> str:
    """The line of one node, without indentation."""
    results = ", ".join(_value_text(value) for value in node.results)
    operands = ", ".join(_operand_text(operand) for operand in node.operands)
    attrs = ", ".join(f"{key}={_attr_text(value)}" for key, value in node.attrs)
    return f"{results}{' = ' if results else ''}{node.target}({operands}) {{{attrs}}}"


def parse_graph(text: str) -> Graph:
    """The graph that ``text`` describes. Raises: IRError with the line and what stands there."""
    blocks: list[Graph] = []
    lines = iter(enumerate(text.split("\n"), start=1))
    for number, line in lines:
        if not line.strip():
            continue
        reader = _Line(line.strip(), number)
        kind, graph = _header(reader)
        graph = _body(graph, lines, reader)
        if kind == "block":
            blocks.append(graph)
            continue
        for number, line in lines:
            if line.strip():
                raise _Line(line.strip(), number).error("nothing after the main graph")
        return replace(graph, blocks=tuple(blocks))
    raise IRError("the text holds no `graph @name {`")


def _print(graph: Graph, kind: str) -> str:
    mesh = "" if graph.mesh is None else f" mesh({graph.mesh})"
    lines = [f"{kind} @{graph.name}{mesh} {{"]
    lines += [f"  {print_node(node)}" for node in graph.nodes]
    lines += ["  " + " ".join(["return", ", ".join(f"%{name}" for name in graph.outputs)]).rstrip(), "}", ""]
    return "\n".join(lines)


def _value_text(value: Value) -> str:
    return f"%{value.name}: {value.type}{'' if value.layout is None else value.layout}"


def _operand_text(operand: Operand) -> str:
    if isinstance(operand, tuple):
        return f"[{', '.join(_operand_text(item) for item in operand)}]"
    return "none" if operand is None else f"%{operand}"


def _attr_text(value: Attr) -> str:
    if isinstance(value, tuple):
        items = ", ".join(_attr_text(item) for item in value)
        return f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, str):
        return json.dumps(value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value)


class _Line:
    """One line, read from left to right."""

    def __init__(self, text: str, number: int) -> None:
        self.text, self.number, self.at = text, number, 0

    def error(self, wanted: str) -> IRError:
        return IRError(f"line {self.number}: expected {wanted}\n  {self.text}\n  {' ' * self.at}^")

    def match(self, pattern: re.Pattern[str], wanted: str) -> re.Match[str]:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self.error(wanted)
        self.at = found.end()
        return found

    def skip(self, word: str) -> bool:
        """Whether ``word`` stands here; if so, step over it."""
        found = self.text.startswith(word, self.at)
        self.at += len(word) * found
        return found

    def need(self, word: str) -> None:
        if not self.skip(word):
            raise self.error(f"`{word}`")

    def end(self) -> None:
        if self.at != len(self.text):
            raise self.error("the end of the line")


def _header(line: _Line) -> tuple[str, Graph]:
    kind, name, axes = line.match(_HEADER, "`graph @name {` or `block @name {`").groups()
    mesh = None
    if axes is not None:
        try:
            sizes = (part.split("=") for part in axes.split(", ") if part)
            mesh = Mesh(tuple((axis, int(size)) for axis, size in sizes))
        except ValueError:
            raise IRError(f"line {line.number}: not a mesh (`mesh(dp=2, tp=4)`)\n  {line.text}") from None
    return kind, Graph(name=name, nodes=(), outputs=(), mesh=mesh)


def _body(graph: Graph, lines: enumerate[str], start: _Line) -> Graph:
    nodes: list[Node] = []
    outputs: tuple[str, ...] | None = None
    for number, text in lines:
        line = _Line(text.strip(), number)
        if not line.text:
            continue
        if outputs is not None:
            line.need("}")
            line.end()
            return replace(graph, nodes=tuple(nodes), outputs=outputs)
        if line.text == "return" or line.skip("return "):
            outputs = _returned(line)
        else:
            nodes.append(_node(line, graph.mesh))
    raise start.error("a `return` line and a `}` that end the graph")


def _returned(line: _Line) -> tuple[str, ...]:
    if line.text == "return":
        return ()
    names = [line.match(_VALUE, "a value, as in `%x`")[1]]
    while line.skip(", "):
        names.append(line.match(_VALUE, "a value, as in `%x`")[1])
    line.end()
    return tuple(names)


def _node(line: _Line, mesh: Mesh | None) -> Node:
    results: list[Value] = []
    if line.text.startswith("%"):
        results.append(_result(line, mesh))
        while line.skip(", "):
            results.append(_result(line, mesh))
        line.need(" = ")
    target = line.match(_TARGET, "an operation, as in `aten.add.Tensor(`")[0]
    line.need("(")
    operands: list[Operand] = []
    while not line.skip(")"):
        if operands:
            line.need(", ")
        operands.append(_operand(line))
    line.need(" {")
    attrs: list[tuple[str, Attr]] = []
    while not line.skip("}"):
        if attrs:
            line.need(", ")
        key = line.match(_KEY, "an attribute, as in `dim=0`")[1]
        attrs.append((key, _attr(line)))
    line.end()
    return Node(results=tuple(results), target=target, operands=tuple(operands), attrs=tuple(attrs))


def _result(line: _Line, mesh: Mesh | None) -> Value:
    at = line.at
    name, dtype, shape, layout = line.match(_RESULT, "a result, as in `%x: f32[2,4]`").groups()
    try:
        type_ = TensorType(dtype, tuple(int(extent) for extent in shape.split(",") if shape))
        if layout is None:
            return Value(name, type_)
        if mesh is None:
            raise ValueError("a layout in a graph without a mesh")
        return Value(name, type_, Layout.parse(layout, mesh))
    except ValueError as error:
        line.at = at
        raise line.error(f"a result with a type and a layout ({error})") from None


def _operand(line: _Line) -> Operand:
    if not line.skip("["):
        return _single(line)
    items: list[str | None] = []
    while not line.skip("]"):
        if items:
            line.need(", ")
        items.append(_single(line))
    return tuple(items)


def _single(line: _Line) -> str | None:
    if line.skip("none"):
        return None
    return line.match(_VALUE, "an operand: `%x`, `none` or a list of them in `[]`")[1]


def _attr(line: _Line) -> Attr:
    if line.skip("("):
        items: list[Attr] = []
        while not line.skip(")"):
            if items:
                line.need(",")
                if len(items) == 1 and line.skip(")"):
                    break
                line.need(" ")
            items.append(_attr(line))
        return tuple(items)
    for word, value in _WORDS.items():
        if line.skip(word):
            return value
    if line.text.startswith('"', line.at):
        text: str = json.loads(line.match(_STRING, "a string in double quotes")[0])
        return text
    number = line.match(_NUMBER, 'a value: none, true, 1, 0.5, "text" or (1, 2)')[0]
    return int(number) if number.lstrip("-").isdigit() else float(number)

"""In-place writes without writes: every write gives a new value, and views of what was written follow.

A *cell* is one storage. A value is the root of a cell or a view of another value of it, made by one
step. A write to a view is carried up to the root by the inverse of each step; the other views are made
again from the root when they are next read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autopar.ir.errors import UnsupportedError
from autopar.ir.graph import Node, Operand
from autopar.ir.types import Attr, TensorType

Emit = Callable[[str, tuple[Operand, ...], dict[str, Attr], TensorType, str], str]
"""(target, operands, attrs, type, source) -> name of the new value."""

_SAME = ("alias", "contiguous", "to", "_to_copy", "detach", "lift_fresh", "lift_fresh_copy")
_RESHAPES = ("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten", "view_as")
_SPLITS = (
    "split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk",
)  # fmt: skip


@dataclass
class _Cell:
    root: str
    version: int = 0


@dataclass
class _View:
    cell: _Cell
    type: TensorType
    value: str
    version: int
    parent: str | None = None
    step: Node | None = None
    result: int = 0


class Aliases:
    """Which values share a storage, and what each of them holds now."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._views: dict[str, _View] = {}

    def root(self, name: str, type_: TensorType) -> None:
        cell = _Cell(name)
        self._views[name] = _View(cell, type_, name, 0)

    def view(self, name: str, type_: TensorType, parent: str, step: Node, result: int) -> None:
        """``name``, result ``result`` of ``step``, shares the storage of ``parent``."""
        above = self._views[parent]
        self._views[name] = _View(above.cell, type_, name, above.cell.version, parent, step, result)

    def root_of(self, name: str) -> str:
        """The value whose storage ``name`` shares."""
        while (view := self._views.get(name)) is not None and view.parent is not None:
            name = view.parent
        return name

    def written(self, name: str) -> bool:
        return self._views[name].cell.version > 0

    def current(self, name: str) -> str:
        """The value that ``name`` holds now."""
        view = self._views.get(name)
        if view is None or view.version == view.cell.version:
            return name if view is None else view.value
        if view.parent is None:
            view.value = view.cell.root
        else:
            assert view.step is not None
            view.value = self._replay(view, view.step, self.current(view.parent))
        view.version = view.cell.version
        return view.value

    def write(self, name: str, value: str, source: str) -> None:
        """``name`` holds ``value`` from here on, and so do all that share its storage."""
        view = self._views[name]
        new, above = value, view
        while above.parent is not None:
            assert above.step is not None
            new = self._inverse(above, above.step, new, source)
            above = self._views[above.parent]
        view.cell.root = new
        view.cell.version += 1
        view.value, view.version = value, view.cell.version

    def _replay(self, view: _View, step: Node, parent: str) -> str:
        attrs = dict(step.attrs)
        op = step.target.split(".")[1]
        if len(step.results) > 1:
            attrs = {"dim": attrs.get("dim", 0), **self._piece(step, view.result)}
            if op == "unbind":
                return self._emit(
                    "aten.select.int",
                    (parent,),
                    {"dim": attrs["dim"], "index": view.result},
                    view.type,
                    step.source,
                )
            return self._emit("aten.slice.Tensor", (parent,), attrs, view.type, step.source)
        return self._emit(step.target, (parent, *step.operands[1:]), attrs, view.type, step.source)

    def _inverse(self, view: _View, step: Node, new: str, source: str) -> str:
        """The parent with ``new`` in the place that the view shows."""
        assert view.parent is not None
        parent_type = self._views[view.parent].type
        parent = self.current(view.parent)
        op = step.target.split(".")[1]
        attrs = dict(step.attrs)

        def emit(target: str, operands: tuple[Operand, ...], **given: Attr) -> str:
            return self._emit(target, operands, given, parent_type, source)

        if op in _SAME and view.type == parent_type:
            return new
        if op in _RESHAPES:
            return emit("aten.reshape.default", (new,), shape=parent_type.shape)
        if op == "permute" and isinstance(dims := attrs["dims"], tuple):
            rank = len(dims)
            where = {int(dim) % rank: at for at, dim in enumerate(dims) if isinstance(dim, int)}
            return emit("aten.permute.default", (new,), dims=tuple(where[dim] for dim in range(rank)))
        if op in ("transpose", "t"):
            return emit(step.target, (new,), **attrs)
        if op == "slice":
            return emit("aten.slice_scatter.default", (parent, new), **attrs)
        if op == "narrow" and isinstance(attrs["start"], int) and isinstance(attrs["length"], int):
            start, length = attrs["start"], attrs["length"]
            return emit(
                "aten.slice_scatter.default", (parent, new), dim=attrs["dim"], start=start, end=start + length
            )
        if op == "select":
            return emit("aten.select_scatter.default", (parent, new), **attrs)
        if op == "unbind":
            return emit(
                "aten.select_scatter.default", (parent, new), dim=attrs.get("dim", 0), index=view.result
            )
        if op in _SPLITS:
            piece = self._piece(step, view.result)
            return emit("aten.slice_scatter.default", (parent, new), dim=attrs.get("dim", 0), **piece)
        raise UnsupportedError(
            f"an in-place write through a view made by {step.target} is not supported ({source}); "
            f"write to a new tensor instead"
        )

    @staticmethod
    def _piece(step: Node, result: int) -> dict[str, Attr]:
        """Start and end of one result of a split along its dim."""
        dim = step.attr("dim", 0)
        assert isinstance(dim, int)
        sizes = [value.type.shape[dim] if value.type.shape else 1 for value in step.results]
        start = sum(sizes[:result])
        return {"start": start, "end": start + sizes[result]}

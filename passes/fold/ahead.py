"""Nodes of an instance that stand ahead of the run.

A branch that depends on no carried value, such as the modulation of a layer by a time embedding, may come
anywhere ahead of its first use, in any order of instances. It is followed from its uses inside the run
backward, in all instances at once.
"""

from __future__ import annotations

from collections.abc import Callable

from autopar.passes.fold.sequence import Sequence


class Ahead:
    """Rows of corresponding nodes, one of each instance, all ahead of position ``start``.

    ``own`` holds (row, operand) of parameters that only the row's node uses. Reports shared values by
    calling ``share``.
    """

    def __init__(self, seq: Sequence, start: int, share: Callable[[int], None]) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.own: list[tuple[int, int]] = []
        self._seq, self._start, self._share = seq, start, share
        self._row_of: dict[int, int] = {}
        self._uses: dict[tuple[int, int], int] = {}  # (row, result) -> uses found

    def follow(self, codes: tuple[int, ...]) -> bool:
        """Whether ``codes``, one of each instance, are results of corresponding nodes; adds their rows."""
        pending = [codes]
        while pending:
            codes = pending.pop()
            row = self._row(codes)
            if row is None:
                return False
            use = row, codes[0] % self._seq.stride
            self._uses[use] = self._uses.get(use, 0) + 1
            if row == len(self.rows) - 1 and sum(n for (r, _), n in self._uses.items() if r == row) == 1:
                operands = self._operands(row)
                if operands is None:
                    return False
                pending += reversed(operands)
        return True

    def closed(self) -> bool:
        """Whether nothing else uses the nodes."""
        stride = self._seq.stride
        return all(
            self._seq.use_count[at * stride + result] == self._uses.get((row, result), 0)
            for row, nodes in enumerate(self.rows)
            for at in nodes
            for result in range(0, 2 * len(self._seq.nodes[at].results), 2)
        )

    def _row(self, codes: tuple[int, ...]) -> int | None:
        seq = self._seq
        nodes = tuple(code // seq.stride for code in codes)
        if any(code in seq.signature or code % seq.stride != codes[0] % seq.stride for code in codes):
            return None
        if any(at < 0 or at >= self._start or seq.labels[at] != seq.labels[nodes[0]] for at in nodes):
            return None
        row = self._row_of.get(nodes[0])
        if row is not None:
            return row if self.rows[row] == nodes else None
        if len({*nodes, *self._row_of}) != len(nodes) + len(self._row_of):
            return None
        self._row_of.update(dict.fromkeys(nodes, len(self.rows)))
        self.rows.append(nodes)
        return len(self.rows) - 1

    def _operands(self, row: int) -> list[tuple[int, ...]] | None:
        """The values that the new row uses, less what is shared and its own parameters."""
        seq, nodes = self._seq, self.rows[row]
        found = []
        for operand, codes in enumerate(zip(*(seq.refs[at] for at in nodes), strict=True)):
            if len(set(codes)) == 1:
                self._share(codes[0])
            elif codes[0] not in seq.signature:
                found.append(codes)
            elif (
                any(
                    code // seq.stride != at or seq.last_use[code] != at
                    for code, at in zip(codes, nodes, strict=True)
                )
                or len({seq.signature.get(code) for code in codes}) != 1
            ):
                return None
            elif codes[0] % seq.stride == 2 * operand + 1:
                self.own.append((row, operand))
        return found

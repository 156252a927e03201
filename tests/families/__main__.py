"""Write docs/coverage.md: which families are traced, planned and trained exactly, and what is refused and why."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.families import FAMILIES
from tests.families.measure import LEAST_SPLIT, MESHES, Cell, Measured, measure

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
_HEAD = """# Coverage

Made by `make coverage` from tiny models of each family (`tests/families/`), unmodified classes of transformers
{transformers} or of torch {torch}, float64, dropout 0. A cell says that three steps of AdamW on that mesh, every
device simulated with its own part of the batch, give the loss, every gradient, every parameter and every buffer of
one device; the number is the largest error relative to its tensor (about 1e-7 where a model casts to float32 by
itself). The plan is the one that the search finds. Where less than {least:.0%} of the matrix products are divided by
an axis, the share stands in brackets. `tests/families/test_processes.py` trains the same on real processes.

| family | operations | {meshes} | notes |
|---|---|{lines}|---|
"""


def main(names: Sequence[str]) -> int:
    """Measure the families (all, if none is named) and print, or without names write, the page."""
    import transformers

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    rows = []
    for name in names or FAMILIES:
        found = measure(FAMILIES[name])
        rows.append(row(found))
        print(rows[-1], flush=True)
    if not names:
        head = _HEAD.format(
            transformers=transformers.__version__, torch=torch.__version__.partition("+")[0], least=LEAST_SPLIT,
            meshes=" | ".join(" × ".join(f"{axis} {size}" for axis, size in mesh.items()) for mesh in MESHES),
            lines="|".join("---" for _ in MESHES),
        )  # fmt: skip
        PAGE.write_text(head + "\n".join(rows) + "\n")
    return 0


def row(found: Measured) -> str:
    if found.refused:
        return f"| {found.family} | | {' | '.join('refused' for _ in MESHES)} | {found.refused} |"
    notes = [cell.reason for cell in found.cells if cell.reason]
    islands = dict.fromkeys(island for cell in found.cells for island in cell.islands)
    notes += [f"on every device alike: {', '.join(f'`{island}`' for island in islands)}"] if islands else []
    cells = " | ".join(_cell(cell) for cell in found.cells)
    return f"| {found.family} | {found.operations} | {cells} | {'; '.join(dict.fromkeys(notes))} |"


def _cell(cell: Cell) -> str:
    if not cell.passed:
        return "no"
    return f"{cell.worst:.0e}" + ("" if cell.split >= LEAST_SPLIT else f" ({cell.split:.0%})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Every family on a mesh of data and tensor parallelism: exact, or refused in words; docs/coverage.md says the same."""

from __future__ import annotations

import pytest

from tests.families import FAMILIES
from tests.families.__main__ import PAGE
from tests.families.measure import LEAST_SPLIT, measure

BOTH = ({"dp": 2, "tp": 2},)
ENOUGH = 24
# other quick tests have their parts
LONG = (
    "switch", "swin", "segformer", "mistral", "qwen2", "falcon", "phi3", "olmo2", "granite", "roberta", "gpt-neox",
    "opt", "deepseek-v2", "llama4", "convnext", "clip", "bart", "olmoe", "granite-moe", "qwen2-moe",
    "qwen3-next", "longcat-flash", "whisper", "deberta-v2",
)  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in FAMILIES])
def test_a_family_trains_on_two_axes_as_on_one_device(name: str) -> None:
    """Loss, gradients, parameters and buffers of three steps; the matrix products are divided on both axes."""
    found = measure(FAMILIES[name], BOTH)
    assert not found.refused
    (cell,) = found.cells
    assert cell.passed, cell.reason
    assert cell.split >= LEAST_SPLIT
    assert cell.islands == ()


def test_the_page_tells_of_every_family() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert [row[0].removeprefix("| ") for row in rows] == list(FAMILIES)
    exact = [row[0] for row in rows if all(cell[0].isdigit() for cell in row[2:5])]
    assert len(exact) == len(FAMILIES) >= ENOUGH

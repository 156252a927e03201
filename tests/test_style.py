"""Rules of the house that a linter does not know."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("autopar", "ir", "cost_model", "passes", "runtime")
FOLDERS = (*LAYERS, "tests", "benchmarks", "examples", "docs", ".ci")
TEXT = {".py", ".md", ".toml", ".txt", ".json", ".html", ".yml", ".yaml", ".ir", ".sh", ""}
MAX_LINES = 400
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|root|home)/")
MARK = re.compile(r"\b(?:TODO|FIXME|XXX)\b(?!: \S+(?: \S+){3,})")  # a reason: four words or more


def sources() -> Iterator[Path]:
    """Every text file of the project; the layers once, under their own names."""
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    for path in (*ROOT.iterdir(), *inside):
        ours = path.suffix in TEXT and "__pycache__" not in path.parts and path != Path(__file__)
        if ours and path.is_file():
            yield path


def matches(pattern: re.Pattern[str]) -> list[str]:
    """Lines of the project in which the pattern occurs, as file:line."""
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_file_is_long():
    """A file of more than 400 lines holds more than one idea."""
    lengths = {path: len(path.read_text().splitlines()) for path in sources() if path.suffix == ".py"}
    assert lengths
    assert not {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > MAX_LINES}


def test_no_file_names_a_place_on_one_machine():
    """Absolute paths of a home or work folder mean nothing to anybody else."""
    assert not matches(MACHINE_PATH)


def test_no_open_end_without_a_reason():
    """Whatever is left to do says what and why."""
    assert not matches(MARK)


@pytest.mark.parametrize(
    ("pattern", "line", "found"),
    [
        (MACHINE_PATH, 'open("/home/me/x")', True),
        (MACHINE_PATH, "cd /work/x", True),
        (MACHINE_PATH, "docs/work/x and network/home/y", False),
        (MARK, "# TODO", True),
        (MARK, "# FIXME later", True),
        (MARK, "# TODO: price the hub, since large sets are only counted", False),
    ],
)
def test_the_patterns_find_what_they_should(pattern, line, found):
    """The rules above are worth nothing if their patterns never match."""
    assert bool(pattern.search(line)) is found

"""No import may point against the layers: ir ← cost_model ← passes, ir ← runtime, everything ← autopar."""

import ast
import fnmatch
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {
    "ir": {"ir"},
    "cost_model": {"ir", "cost_model"},
    "passes": {"ir", "cost_model", "passes"},
    "runtime": {"ir", "runtime"},
    "autopar": {"ir", "cost_model", "passes", "runtime", "autopar"},
}
THIRD_PARTY = {  # pattern of the file's path → the packages it may import beside the standard library
    "ir/plan*": "pydantic pydantic_core",
    "cost_model/*": "numpy pydantic pydantic_core",
    "passes/*": "numpy",
    "passes/trace*": "torch",
    "passes/solve*": "ortools",
    "passes/fold*": "networkx",
    "passes/stage*": "networkx",
    "runtime/*": "torch",
    "autopar/*": "typer rich jinja2 torch numpy",
    "autopar/zoo*": "transformers",
}


def imported(source: str, package: list[str]) -> Iterator[str]:
    """Absolute dotted names of all that a module of `package` imports, inside functions included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            yield from (".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names)


def violations(path: str, source: str) -> list[str]:
    """What the file at `path` (relative to the root, such as "ir/graph.py") imports but may not."""
    layer, *_ = folders = list(Path(path).parts[:-1])
    package = folders if layer == "autopar" else ["autopar", *folders]
    patterns = [pattern for pattern in THIRD_PARTY if fnmatch.fnmatch(path, pattern)]
    third_party = {name for pattern in patterns for name in THIRD_PARTY[pattern].split()}
    found = []
    for name in imported(source, package):
        top, second, *_ = [*name.split("."), ""]
        target = second if second in OURS else "autopar"
        if top == "autopar":
            legal = target in OURS[layer]
        else:
            legal = top in third_party or top in sys.stdlib_module_names
        if not legal:
            found.append(f"{path}: {layer} may not import {name}")
    return found


def test_every_import_follows_the_layers():
    """The arrows of the design hold in every source file, also inside functions and under TYPE_CHECKING."""
    files = [path for layer in OURS for path in sorted((ROOT / layer).rglob("*.py"))]
    assert files
    found = {path: violations(path.relative_to(ROOT).as_posix(), path.read_text()) for path in files}
    assert not [line for lines in found.values() for line in lines]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ir/graph.py", "from autopar.cost_model import units"),
        ("ir/graph.py", "def f():\n    import numpy"),
        ("ir/graph.py", "from autopar import passes"),
        ("ir/graph.py", "from autopar import parallelize"),
        ("ir/graph.py", "from .. import runtime"),
        ("ir/graph.py", "import pydantic"),
        ("cost_model/units.py", "from ..passes.solve import model"),
        ("cost_model/units.py", "import torch"),
        ("passes/fold/find.py", "import autopar.runtime.program"),
        ("passes/solve/model.py", "if TYPE_CHECKING:\n    import torch"),
        ("passes/problem.py", "from ortools.sat.python import cp_model"),
        ("passes/lower.py", "import networkx"),
        ("runtime/program.py", "from autopar.passes import lower"),
        ("runtime/program.py", "import numpy"),
        ("autopar/cli.py", "import transformers"),
        ("passes/lower.py", "from ir.graph import Graph"),
    ],
)
def test_a_forbidden_import_is_found(path, source):
    """Each row plants one arrow that the design forbids."""
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ir/graph.py", "import math, json\nfrom .types import Dtype\nfrom . import mesh"),
        ("ir/graph.py", "from autopar.ir import layout\nimport autopar.ir.rules"),
        ("ir/plan_file.py", "from pydantic import BaseModel"),
        ("passes/solve/model.py", "import numpy\nfrom ortools.sat.python import cp_model"),
        ("passes/solve/model.py", "from ..problem import Problem\nfrom .. import lower"),
        ("passes/trace.py", "import torch"),
        ("runtime/program.py", "import torch.distributed\nfrom ..ir import Graph"),
        ("autopar/zoo/llama.py", "import transformers\nfrom autopar.passes import trace"),
        ("autopar/api.py", "from . import runtime\nfrom .passes.solve import solve"),
    ],
)
def test_an_allowed_import_is_not_reported(path, source):
    """The checker knows relative imports, the standard library and each layer's own packages."""
    assert violations(path, source) == []

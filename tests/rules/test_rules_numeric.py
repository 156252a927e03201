"""Every rule of the op table against the unsharded operation, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autopar.ir.errors import VerificationError
from autopar.ir.graph import Graph, Node, Value
from autopar.ir.mesh import Mesh
from autopar.ir.optable import TABLE, rule
from autopar.ir.types import TensorType
from autopar.passes.losses import open_losses
from autopar.passes.strategies import Strategy
from autopar.runtime.simulate import simulate
from tests.lowered import all_graphs, collectives, lowered, model_of
from tests.rules.example import Example
from tests.rules.examples import EXAMPLES, NOT_RUN
from tests.rules.lies import LIES
from tests.rules.oracle import Case, case_of, check, some

SQUARE = Mesh((("x", 2), ("y", 2)))


def test_every_row_has_an_example() -> None:
    """A new row needs an example, or a reason."""
    shown = {example.target for example in EXAMPLES}
    assert set(TABLE) - shown - set(NOT_RUN) == set()
    assert shown <= set(TABLE)


@pytest.mark.parametrize("sizes", [(2, 3), pytest.param((4,), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_every_strategy_on_one_axis(example: Example, sizes: tuple[int, ...]) -> None:
    """Results and gradients of a split operation are those of the whole one."""
    for size in sizes:
        case = case_of(example, Mesh((("x", size),)))
        for chosen in case.strategies():
            _checked(case, chosen)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_a_sample_of_strategies_on_two_axes(example: Example) -> None:
    """Axes do not get in each other's way."""
    case = case_of(example, SQUARE)
    for chosen in some(case.strategies(), 5, str(example)):
        _checked(case, chosen)


def _checked(case: Case, chosen: Strategy) -> None:
    try:
        check(case, chosen)
    except Exception as error:
        error.add_note(f"{case.example} on mesh({case.mesh}) with {chosen.text(case.mesh)}")
        raise


def offered(target: str, size: int = 2) -> set[str]:
    """Choices on one axis over all examples of an operation."""
    mesh = Mesh((("x", size),))
    cases = [case_of(example, mesh) for example in EXAMPLES if example.target == target]
    return {str(chosen.choices[0]) for case in cases for chosen in case.strategies()}


@pytest.mark.parametrize(
    ("target", "choices"),
    [
        ("aten.embedding.default", {"v", "d", "*b0", "*b1", "-"}),
        ("aten.scaled_dot_product_attention.default", {"b0", "g", "h", "sq", "-"}),
        ("autopar.cross_entropy_stats", {"v", "*b0", "*b1", "-"}),
        ("autopar.row_max", {"v", "*b0", "*b1", "-"}),
        ("aten.linear.default", {"*b0", "*b1", "k", "n", "P0", "P1", "-"}),
        ("aten.layer_norm.default", {"d0", "d1", "-"}),
        ("autopar.experts", {"t", "t>e", "e", "i", "-"}),
        ("autopar.delta_rule", {"b", "h", "r", "-"}),
        ("autopar.dropout", {"*b0", "*b1", "*b2", "*b3", "P0", "-"}),
    ],
)
def test_what_is_offered(target: str, choices: set[str]) -> None:
    """Each dim that parallel training splits is among the choices, strides left out."""
    assert {choice.split("/")[0] for choice in offered(target)} == choices


@pytest.mark.parametrize(
    ("target", "spec", "columns"),
    [
        *LIES,
        ("aten.rms_norm.default", "*b d, d -> *b d", {}),
        ("aten.linear.default", "*b !k, n !k -> *b n", {"partial": "0+1"}),
        ("autopar.cross_entropy_from_stats", "*b two, *b ->", {}),
        ("aten.cumsum.default", "*b -> *b", {}),
        ("aten.index_select.default", "slice_dim", {}),
        ("autopar.dropout", "*b, state -> *b", {}),
    ],
)
def test_a_lying_rule_is_caught(
    monkeypatch: pytest.MonkeyPatch, target: str, spec: str, columns: dict[str, str]
) -> None:
    """A rule that splits what must be whole, or reduces by the wrong sum, does not pass."""
    monkeypatch.setitem(TABLE, target, TABLE[target])
    rule(target, spec, **columns)
    assert any(_lies(case_of(example, Mesh((("x", 2),)))) for example in EXAMPLES if example.target == target)


def _lies(case: Case) -> bool:
    try:
        for chosen in case.strategies():
            check(case, chosen)
    except (AssertionError, VerificationError, RuntimeError, IndexError):  # torch refuses shapes that do not fit
        return True
    return False


@pytest.mark.parametrize("mesh", [Mesh((("x", 2),)), Mesh((("x", 4),)), Mesh((("x", 2), ("y", 2)))], ids=str)
def test_cross_entropy_over_a_split_vocabulary_is_torchs(mesh: Mesh) -> None:
    """The logits are never gathered, and a row whose target is ignored counts for nothing."""
    graph = open_losses(_loss_graph())
    inner = dict.fromkeys(mesh.names, "v")
    choices = {"l_max": inner, "l_stats": inner}
    program = lowered(model_of(graph), mesh, choices, {"x": ", ".join(f"{axis}:S(2)" for axis in mesh.names)})
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 8, generator=generator, dtype=torch.float64) * 30
    target = torch.randint(0, 8, (3, 5), generator=generator)
    target[0] = 7
    target[2, 1:] = -100
    found = simulate(program, {}, {"x": logits, "t": target})
    leaf = logits.clone().requires_grad_()
    expected = F.cross_entropy(leaf.reshape(-1, 8), target.reshape(-1), ignore_index=-100, reduction="sum")
    expected.backward()
    assert found.loss is not None and leaf.grad is not None
    torch.testing.assert_close(found.loss, expected.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(found.gradients["x"], leaf.grad, rtol=1e-12, atol=1e-12)
    assert collectives(program, mesh.names[0]) == ["all_reduce", "all_reduce"]
    assert sum(node.target == "autopar.cross_entropy" for part in all_graphs(program) for node in part.nodes) == 0


def test_cross_entropy_with_whole_rows_is_one_operation_again() -> None:
    """The three parts exist only where an axis took the classes."""
    program = lowered(
        model_of(open_losses(_loss_graph())),
        Mesh((("x", 3),)),
        {key: {"x": "*b0"} for key in ("l_max", "l_stats", "l")},
    )
    assert [n.target for n in program.graph.nodes if n.target.startswith("autopar.")] == ["autopar.cross_entropy"]


def _loss_graph() -> Graph:
    def source(name: str, target: str, kind: TensorType) -> Node:
        return Node(results=(Value(name, kind),), target=target, attrs=(("fqn", name),))

    loss = Node(results=(Value("l", TensorType("f64", ())),), target="autopar.cross_entropy", operands=("x", "t"),
                attrs=(("ignore_index", -100),))  # fmt: skip
    sources = (source("x", "param", TensorType("f64", (3, 5, 8))), source("t", "constant", TensorType("i64", (3, 5))))
    return Graph(name="loss", nodes=(*sources, loss), outputs=("l",))

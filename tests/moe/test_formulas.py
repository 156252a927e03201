"""Gates that no name says are read off their operations, and experts compute and train with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autopar.ir.errors import IRError
from autopar.ir.formulas import Formula, parse_gate
from autopar.ir.text import parse_graph, print_graph
from autopar.passes.trace.experts import _numbers
from autopar.passes.trace.formulas import formula_of
from autopar.runtime import experts_dense, experts_fused
from autopar.runtime.experts import experts
from autopar.runtime.gates import gated, gated_and_backward
from tests.families.family import Family, causal_batch
from tests.families.measure import measure
from tests.families.mixtures import mixtral
from tests.moe.plain import Sizes, operands
from tests.moe.test_engines import grouped
from tests.moe.test_trace import experts_in, traced

Function = Callable[[Tensor], Tensor]


def halves(act: Function) -> Function:
    def gate(x: Tensor) -> Tensor:
        g, u = x.chunk(2, -1)
        return act(g) * u

    return gate


def softcapped(x: Tensor) -> Tensor:
    """In float32, whatever it is given."""
    g, u = (part.float() for part in x.chunk(2, -1))
    return (torch.tanh(g / 7) * 7 * torch.sigmoid(g) * torch.tanh(u / 5) * 5).to(x.dtype)


def widened(x: Tensor) -> Tensor:
    """All columns, before they are taken apart; those that make one stand side by side."""
    wide = x.float()
    return (F.mish(wide[..., ::2]) * wide[..., 1::2].clamp(-3, math.inf)).to(x.dtype)


def sliced(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.where(x[..., half:] > 0, x[..., :half], 0.1 * x[..., half:])


GATED: dict[str, Function] = {
    "softcapped": softcapped, "widened": widened, "sliced": sliced, "quick": halves(lambda x: x * (2 * x).sigmoid()),
    "elu": halves(F.elu), "leaky": halves(lambda x: F.leaky_relu(x, 0.1)), "hardswish": halves(F.hardswish),
    "only u": lambda x: x.chunk(2, -1)[1], "by hand": halves(lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))),
}  # fmt: skip
ALONE: dict[str, Function] = {
    "mish": F.mish, "relu6": F.relu6, "softplus": F.softplus, "linear": nn.Identity(), "cubed": lambda x: x**3,
    "capped": lambda x: F.relu(x).clamp(max=50),
}  # fmt: skip
EVERY = [*((name, gate, True) for name, gate in GATED.items()), *((name, gate, False) for name, gate in ALONE.items())]
each = pytest.mark.parametrize(
    ("gate", "glu"), [(gate, glu) for _, gate, glu in EVERY], ids=[name for name, *_ in EVERY]
)


def read(gate: Function, *, glu: bool) -> Formula:
    found = formula_of(gate, _numbers(), glu=glu)
    assert found is not None
    return found


@each
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_value_and_gradient_are_those_of_the_gate(gate: Function, glu: bool, dtype: torch.dtype) -> None:
    formula = read(gate, glu=glu)
    generator = torch.Generator().manual_seed(0)
    x = (3 * torch.randn(5, 12, generator=generator)).to(dtype).requires_grad_()
    wanted = gate(x)
    grad = torch.randn(wanted.shape, generator=generator).to(dtype)
    (of_x,) = torch.autograd.grad(wanted, x, grad)
    with torch.no_grad():
        made, inwards = gated_and_backward(formula, x)
        found = inwards(grad)
    assert made.dtype == found.dtype == dtype and made.data_ptr() != x.data_ptr()
    torch.testing.assert_close(made, wanted.detach())
    torch.testing.assert_close(found, of_x)
    assert torch.equal(gated(formula, x.detach()), made)


@each
def test_its_text_is_read_again(gate: Function, glu: bool) -> None:
    formula = read(gate, glu=glu)
    assert parse_gate(str(formula)) == formula
    assert formula.columns == 1 + glu


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.25, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x) + self.slope * x


def mixed(x: Tensor) -> Tensor:
    """g from the first half, u from every second column."""
    return x[..., : x.shape[-1] // 2] * x[..., 1::2]


def thirds(x: Tensor) -> Tensor:
    g, u, _ = x.tensor_split(3, -1)
    return g * u


def writes(x: Tensor) -> Tensor:
    g, u = x.chunk(2, -1)
    g.clamp_(max=1)
    return g * u


def decides(x: Tensor) -> Tensor:
    return x if bool(x.sum() > 0) else -x


REFUSED: list[tuple[Function, bool]] = [
    (halves(lambda x: x.softmax(-1)), True), (lambda x: x.cumsum(-1), False), (Learned(), False), (mixed, True),
    (thirds, True), (writes, True), (decides, False), (lambda x: F.dropout(x, 0.5), False),
    (lambda x: x.flip(-1), False),
    (lambda x: x * torch.rand_like(x), False), (lambda x: x - x.mean(), False), (lambda x: x.chunk(2, -1)[0], False),
]  # fmt: skip


@pytest.mark.parametrize(("gate", "glu"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_element_by_element_is_none(gate: Function, glu: bool) -> None:
    assert formula_of(gate, _numbers(), glu=glu) is None


@pytest.mark.parametrize(
    "text",
    [
        "formula", "formula | x", "formula-glu | g | d", "formula | x;x | d", "formula | a=relu.default(x);a | ",
        "formula | a=__import__('os');a | d", "formula | a=relu.default(x).b;a | d",
        "formula | a = relu.default(x);a | d",
        "formula | a=relu.default([x]);a | d", "formula pairs | x | d", "formula | lambda: x | d", "formula | ( | d",
        "formula | a,b=relu.default(x);a | d", "formula | a=b=relu.default(x);a | d",
    ],
)  # fmt: skip
def test_what_is_no_formula_says_so(text: str) -> None:
    with pytest.raises(IRError, match="formula"):
        parse_gate(text)


@pytest.mark.parametrize("engine", ["loop", "fused", "dense"])
def test_experts_compute_with_a_formula(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each kernel, forward and backward, as a loop over tokens."""
    monkeypatch.setattr(F, "grouped_mm", grouped)
    monkeypatch.setattr(experts_fused, "usable", lambda *_: engine == "fused")
    monkeypatch.setattr(experts_dense, "usable", lambda *_: engine == "dense")
    gate = GATED["leaky"]
    given: list[Any] = operands(Sizes(), biased=True)
    x, index, weight, up, down, bias = given
    rows = [
        sum(
            weight[t, k] * (down[e] @ gate(up[e] @ x[t] + bias[e])) for k, e in enumerate(index[t].tolist())
        )
        for t in range(len(x))
    ]  # fmt: skip
    leaves = [x, weight, up, down, bias]
    wanted = torch.stack(rows)
    found = experts(*given, gate=str(read(gate, glu=True)))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    pairs = zip(*(torch.autograd.grad(made.cos().sum(), leaves) for made in (found, wanted)), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


class Softcap(nn.Module):
    """In float32, whatever it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return (torch.tanh(x.float() / 3) * 3).to(x.dtype)


def softcapped_mixtral() -> nn.Module:
    model: Any = mixtral(hidden_act="quick_gelu").build()
    model.model.layers[1].mlp.experts.act_fn = Softcap()
    return model  # type: ignore[no-any-return]


def test_a_mixture_with_gates_of_its_own_trains_on_every_mesh() -> None:
    """Of activations that no gate has; one of them computes in float32."""
    graph = traced(softcapped_mixtral())
    gates = [parse_gate(str(node.attr("gate"))) for node in experts_in(graph)]
    assert [type(gate) for gate in gates] == [Formula, Formula] and len(set(gates)) == 2
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
    family = Family(name="softcapped", build=softcapped_mixtral, batch=causal_batch)
    for cell in measure(family, ({"ep": 2}, {"tp": 2}, {"ep": 2, "tp": 2}, {"dp": 2, "ep": 2})).cells:
        assert cell.passed, cell.reason
        assert not cell.islands and cell.split == 1

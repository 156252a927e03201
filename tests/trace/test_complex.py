"""Complex values, with which rotary embeddings are often written: traced as they are, or refused by their line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from autopar.ir.errors import UnsupportedError
from autopar.passes.canonicalize import canonicalize
from autopar.passes.trace import trace
from tests.trace.compare import assert_same
from tests.trace.test_spelling import targets, traced_body


def pairs(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x).flatten(-2)


BODIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "polar": lambda w: real(pairs(w) * torch.polar(torch.ones_like(w[..., ::2]), w[..., ::2])),
    "arithmetic": lambda w: real((pairs(w) + 2.0) * pairs(w) / (pairs(w) - w[..., :3]) - 1.0),
    "negative": lambda w: real(-pairs(w)),
    "views": lambda w: real(pairs(w)[:, 1:].unsqueeze(1).expand(-1, 2, -1, -1).transpose(0, 1).contiguous()),
    "flattened": lambda w: real((pairs(w).flatten(0, 1) * 2.0).view(2, 4, 3)),
    "pieces": lambda w: real(torch.cat(pairs(w).chunk(3, -1)[:2], -1)),
    "index": lambda w: real(pairs(w)[:, torch.tensor([2, 0])]),
    "casts": lambda w: real(w.to(torch.complex128) * pairs(w).to(torch.complex64)[..., :1]),
    "detached": lambda w: real(pairs(w).detach() * pairs(w)),
    "no grad": lambda w: real(pairs(w) * torch.no_grad()(pairs)(w)),
    "far apart": lambda w: real(torch.view_as_complex(torch.stack((w, w * 2), -1))),
}


@pytest.mark.parametrize("name", BODIES)
def test_complex_values_are_traced_as_they_are(name: str) -> None:
    """Traced and canonical graphs give the model's outputs and gradients."""
    traced_body(BODIES[name], (2, 4, 6))


def test_a_rotary_embedding_stays_one_product() -> None:
    graph = traced_body(lambda w: real(pairs(w) * torch.polar(w[..., :3], w[..., 3:])), (2, 4, 6))
    complex_ones = [node.target for node in graph.nodes if any(value.type.is_complex for value in node.results)]
    assert complex_ones == ["autopar.as_complex", "aten.polar.default", "aten.mul.Tensor"]
    assert "aten.view_as_real.default" in targets(graph)


class Tables(nn.Module):
    """A complex buffer, and a plain tensor; one number of it too."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 8).double())
        self.buffer = nn.Buffer(torch.randn(5, 4, dtype=torch.complex128))
        self.plain = torch.randn(3, 4, dtype=torch.complex128)
        self.number = torch.tensor(1j, dtype=torch.complex128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * real(pairs(self.w) * self.buffer[:3] * self.plain * self.number)


def test_tables_of_complex_numbers_are_buffers_and_constants() -> None:
    traced, _ = assert_same(Tables(), (torch.randn(3, 8).double(),))
    assert {name: tensor.dtype for name, tensor in traced.constants.items()} == dict.fromkeys(
        ("plain", "number"), torch.complex128
    )


def test_mixed_precision_leaves_complex_values_alone() -> None:
    """Torch has no pairs of half precision: a model casts before and after by itself."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.table = nn.Buffer(torch.randn(3, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return real(pairs(self.linear(x).float()) * self.table).type_as(x)

    traced = trace(Model(), (torch.randn(4, 6),), mixed_precision="bf16")
    graph = canonicalize(traced.graph)
    assert {value.type.dtype for node in graph.nodes for value in node.results} == {"bf16", "f32", "c64"}
    assert graph.values()[graph.outputs[0]].type.dtype == "bf16"


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return real(pairs(x) * self.w)


class Body(nn.Module):
    def __init__(self, body: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


@pytest.mark.parametrize(
    ("model", "dtype", "match"),
    [
        (Learned(), torch.float32, r"complex64 is not supported in param \(w\).*torch\.polar"),
        (Body(real), torch.complex64, r"complex64 is not supported in input \(.*x.*\)"),
        (Body(pairs), torch.float64, r"complex128 is not supported as an output of the model \(test_complex\.py"),
        (Body(lambda x: real(pairs(x) @ pairs(x).mT)), torch.float32, r"in aten\.matmul\.default.*test_complex\.py"),
        (Body(lambda x: real(pairs(x) * 1j)), torch.float32, r"argument of type complex .*test_complex\.py"),
        (Body(lambda x: pairs(x).abs()), torch.float32, r"in aten\.abs\.default.*test_complex\.py"),
    ],
    ids=["parameter", "input", "output", "product", "number", "abs"],
)  # fmt: skip
def test_what_else_is_complex_is_refused(model: nn.Module, dtype: torch.dtype, match: str) -> None:
    with pytest.raises(UnsupportedError, match=match):
        trace(model, (torch.randn(4, 8, dtype=dtype),))

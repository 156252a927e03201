"""Deep models are traced and folded in short, to the same graph; what differs or is used elsewhere is not left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autopar.arguments import check
from autopar.compiling import ready, stored_parameters
from autopar.finding import find_plan
from autopar.passes.canonicalize import canonicalize
from autopar.passes.fold import fold
from autopar.passes.fold.gaps import fill
from autopar.passes.prepare import canonical_graph, prepare
from autopar.passes.trace import trace
from tests.fold.test_models import bert, gemma2, gpt2, llama, t5
from tests.trace.repeating import WIDTH, Block, HasBuffer
from tests.trace.test_repeats import numbered

LAYERS = 10
TOKENS = torch.zeros(2, 8, dtype=torch.long)
NAMED = {"input_ids": TOKENS, "labels": TOKENS}
VECTORS = (torch.randn(4, WIDTH),)


class Deep(nn.Module):
    """Ten blocks in a row."""

    def __init__(self, block: type[Block] = Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block(index) for index in range(LAYERS))
        self.first = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Any:
        x = x * self.first
        for block in self.blocks:
            x = block(x)
        return x.sum()


class Collected(Deep):
    """What every block makes is used again."""

    def forward(self, x: Tensor) -> Any:
        made = [x * self.first]
        for block in self.blocks:
            made.append(block(made[-1]))
        return torch.stack(made).sum()


class Decayed(Deep):
    """Reads the parameters of all blocks, from outside."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + sum(weight.square().sum() for weight in self.parameters())


class ReadsOne(Deep):
    """Reads a parameter of one block, from outside."""

    def forward(self, x: Tensor) -> Any:
        weight: Tensor = self.blocks[7].inner.weight  # type: ignore[assignment, union-attr]
        return super().forward(x @ weight)


class AsksOne(Deep):
    """Asks what a parameter of one block is like."""

    def forward(self, x: Tensor) -> Any:
        weight: Tensor = self.blocks[7].inner.weight  # type: ignore[assignment, union-attr]
        return super().forward(x.to(weight.dtype) * (2.0 if weight.requires_grad else 3.0))


class LastApart(Deep):
    """Calls a part of the last block by itself."""

    def forward(self, x: Tensor) -> Any:
        for block in self.blocks[:-1]:
            x = block(x)
        return self.blocks[-1].inner(x).sum()  # type: ignore[operator]


class OneUnlike(Deep):
    """Gives one block in the middle something else."""

    def forward(self, x: Tensor) -> Any:
        for turn, block in enumerate(self.blocks):
            x = block(x if turn != 6 else x.double().float().T.contiguous().T)
        return x.sum()


class Biased(Block):
    """Reads a buffer of its own, and writes to what it makes."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.register_buffer("bias", torch.full((WIDTH,), float(index)))

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            mask = torch.zeros_like(x)
            mask.scatter_(1, x.argmax(1, keepdim=True), 1)
        return super().forward(x + self.bias * mask)  # type: ignore[operator]


class Counted(Biased):
    """Writes to its buffer, through a view."""

    def forward(self, x: Tensor) -> Any:
        self.bias.view(-1)[:2].add_(1)  # type: ignore[operator]
        return super().forward(x)


class CountedUnseen(Biased):
    """Writes to its buffer where autograd does not look."""

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.bias.add_(x.mean(0))  # type: ignore[operator]
        return super().forward(x)


class WritesOne(Deep):
    """Writes to a buffer of one block, from outside."""

    def __init__(self) -> None:
        super().__init__(Biased)

    def forward(self, x: Tensor) -> Any:
        self.blocks[5].bias.add_(1)  # type: ignore[operator]
        return super().forward(x)


class Normed(Block):
    """Keeps running statistics."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Any:
        return super().forward(self.norm(x))


@pytest.mark.parametrize(
    ("model", "inputs", "missing"),
    [
        pytest.param(lambda: gpt2(LAYERS), NAMED, LAYERS - 6, marks=pytest.mark.slow),
        (lambda: llama(LAYERS), NAMED, LAYERS - 6),
        pytest.param(lambda: bert(LAYERS), NAMED, LAYERS - 6, marks=pytest.mark.slow),
        (lambda: t5(LAYERS), NAMED, 2 * (LAYERS - 7)),
        (lambda: gemma2(LAYERS), NAMED, 0),
        (Deep, VECTORS, LAYERS - 6),
        (Collected, VECTORS, 0),
        (lambda: Deep(HasBuffer), VECTORS, 0),
        (lambda: Deep(Biased), VECTORS, LAYERS - 6),
        (lambda: Deep(Counted), VECTORS, 0),
        (lambda: Deep(CountedUnseen), VECTORS, 0),
        (lambda: Deep(Normed), VECTORS, 0),
        (WritesOne, VECTORS, 0),
    ],
)
def test_the_fold_of_a_short_trace_filled_is_the_fold_of_the_whole(
    model: Callable[[], nn.Module], inputs: Any, missing: int
) -> None:
    made = model()
    short, whole = trace(made, inputs, gaps=True), trace(made, inputs)
    filled, _ = fill(fold(canonicalize(short.graph)), short.gaps)
    assert filled == fold(canonicalize(whole.graph))
    assert sum(len(gap.missing) for gap in short.gaps) == missing
    assert (short.parameters, short.updates) == (whole.parameters, whole.updates)


@pytest.mark.parametrize("model", [Deep, Collected, Decayed, ReadsOne, AsksOne, LastApart, OneUnlike])
def test_what_is_hidden_from_the_trace_is_seen_where_it_is_used(model: type[nn.Module]) -> None:
    made = model()
    assert numbered(trace(made, VECTORS).graph) == numbered(trace(made, VECTORS, repeated_once=False).graph)


def test_the_modules_are_back_after_a_trace() -> None:
    made = Deep()
    before = [(name, id(part)) for name, part in made.named_modules()]
    weights = [(name, id(part)) for name, part in made.named_parameters()]
    trace(made, VECTORS)
    assert [(name, id(part)) for name, part in made.named_modules()] == before
    assert [(name, id(part)) for name, part in made.named_parameters()] == weights


@pytest.mark.parametrize(("model", "inputs", "blocks"), [(Deep, VECTORS, 1), (lambda: gemma2(LAYERS), NAMED, 2)])
def test_torch_export_is_shown_one_block_of_each_sort(
    model: Callable[[], nn.Module], inputs: Any, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model()
    inside = [name for name, _ in made.named_parameters() if ".0." in name]
    outside = [name for name, _ in made.named_parameters() if not any(f".{n}." in name for n in range(LAYERS))]
    shown: list[int] = []
    export = torch.export.export

    def counting(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        shown.append(len(list(module.parameters())))
        return export(module, *args, **kwargs)

    monkeypatch.setattr(torch.export, "export", counting)
    trace(made, inputs)
    assert shown == [blocks * len(inside) + len(outside)]


def test_the_plan_is_that_of_the_whole_graph() -> None:
    model = llama(LAYERS)
    arguments = check(cluster="1x2xH100-SXM", memory_budget=10**9)
    found = ready(model, NAMED, arguments)
    whole = trace(model, NAMED)
    graph = canonical_graph(whole.graph)
    made = prepare(graph, whole.loss_output, stored_parameters(whole), found.model.settings)
    assert found.traced.gaps and not whole.gaps
    assert found.model.graph == made.graph
    assert found.graph_nodes == len(graph.nodes)
    plan, _ = find_plan(found, arguments)
    assert plan.graph.nodes == len(graph.nodes)

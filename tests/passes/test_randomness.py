"""Operations that draw are written as ours, numbered through blocks and calls, or refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autopar.ir.errors import UnsupportedError
from autopar.ir.graph import Graph
from autopar.ir.program import RNG_INPUT
from autopar.ir.text import parse_graph, print_graph
from autopar.ir.verify import verify
from autopar.passes.draws import open_draws
from autopar.passes.fold import fold
from autopar.passes.prepare import canonical_graph, input_dims
from autopar.passes.randomness import DRAWS, number_draws, random_nodes, refuse_random
from autopar.passes.trace import trace
from autopar.passes.unfold import apart, unfold
from autopar.runtime.ops import run_node
from autopar.runtime.random_words import rng_state
from tests.models import gpt2, inputs

SHAPE = (40, 50, 30)


class Drawing(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def graph_of(function: Callable[[Tensor], Tensor]) -> Graph:
    return canonical_graph(trace(Drawing(function), {"x": torch.ones(SHAPE)}).graph)


def drawn(graph: Graph, x: Tensor) -> Tensor:
    """What the graph computes of ``x``."""
    values: dict[str, Tensor] = {}
    for node in graph.nodes:
        if node.target == "input":
            values[node.result.name] = rng_state(1, 2) if node.attr("name") == RNG_INPUT else x
        else:
            results = run_node(node, [values[name] for name in node.uses()], {}, torch.device("cpu"))
            values.update(zip((value.name for value in node.results), results, strict=True))
    return values[graph.outputs[0]]


KNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout in place": lambda x: F.dropout(x + 1, 0.3, inplace=True),
    "dropout1d": lambda x: F.dropout1d(x, 0.3),
    "dropout2d": lambda x: F.dropout2d(x.unsqueeze(3), 0.3).squeeze(3),
    "native_dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "mask of native_dropout": lambda x: torch.native_dropout(x, 0.3, True)[1].float(),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.3, True),
    "rand": lambda x: x * torch.rand(SHAPE),
    "rand_like": torch.rand_like,
    "randn": lambda x: x * torch.randn(SHAPE),
    "randn_like": torch.randn_like,
    "bernoulli": lambda x: torch.bernoulli(x * 0.3),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.3),
    "normal_": lambda x: torch.empty_like(x).normal_(2, 3),
    "normal of numbers": lambda x: x * torch.normal(2.0, 3.0, SHAPE),
    "normal of a mean": lambda x: torch.normal(x * 2, 3.0),
    "normal of a deviation": lambda x: torch.normal(2.0, x * 3),
    "normal of tensors": lambda x: torch.normal(x * 2, x * 3),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-1, 3),
    "exponential_": lambda x: torch.empty_like(x).exponential_(2.0),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, tau=0.7),
    "randint": lambda x: x * torch.randint(2, 9, SHAPE),
    "randint_like": lambda x: torch.randint_like(x, 2, 9),
}
CHANNELS = ("dropout1d", "dropout2d", "feature_alpha_dropout")  # fewer numbers, which vary more


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_drawn_is_distributed_as_torch_draws_it(name: str) -> None:
    graph = graph_of(KNOWN[name])
    assert not list(random_nodes(graph)) and any(node.target in DRAWS for node in graph.nodes)
    verify(graph, after="draws")
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
    torch.manual_seed(0)
    found, expected = drawn(graph, torch.ones(SHAPE)).double(), KNOWN[name](torch.ones(SHAPE)).double()
    assert found.shape == expected.shape
    count = found.numel() // (SHAPE[-1] if name in CHANNELS else 1)
    assert abs(float(found.mean() - expected.mean())) < 6 * float(expected.std()) / count**0.5
    assert abs(float(found.std() / expected.std()) - 1) < 8 / count**0.5
    assert (found.min() < found.mean()) == (expected.min() < expected.mean())


@pytest.mark.parametrize("name", ["dropout1d", "feature_alpha_dropout"])
def test_whole_channels_are_dropped(name: str) -> None:
    found = drawn(graph_of(KNOWN[name]), torch.ones(SHAPE))
    assert bool((found == found[..., :1]).all()) and found[..., 0].unique().numel() == 2


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "multinomial": lambda x: torch.multinomial(x[0], 3).float(),
    "poisson": torch.poisson,
    "rrelu": lambda x: F.rrelu(x, training=True),
    "randperm": lambda x: x[0, :, 0] * torch.randperm(50),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_drawn_by_hash_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"aten\.{name}.* draws random numbers in sequence.*torch\.rand"):
        refuse_random(graph_of(REFUSED[name]))


def test_a_graph_that_draws_nothing_has_no_state() -> None:
    graph = graph_of(lambda x: x + 1)
    assert open_draws(graph) is graph
    assert RNG_INPUT not in print_graph(graph) and number_draws(graph) is graph


def test_evaluation_draws_nothing() -> None:
    made = trace(nn.Dropout(0.5).eval(), {"input": torch.ones(3)})
    assert RNG_INPUT not in print_graph(canonical_graph(made.graph))


def test_the_state_is_no_batch_input() -> None:
    """Its extent is 4: so is the batch."""
    graph = canonical_graph(trace(nn.Dropout(0.5), {"input": torch.ones(4, 3)}).graph)
    assert input_dims(graph) == {"input": (0, None), RNG_INPUT: (None, None)}


LAYERS = 5


@pytest.fixture(scope="module")
def numbered() -> Graph:
    """Five layers of GPT-2, three draws each; one draw ahead of them."""
    model = gpt2(LAYERS, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
    made = trace(model, inputs("gpt2")).graph
    return number_draws(fold(canonical_graph(made)))


def test_layers_with_dropout_fold_as_layers_without_do(numbered: Graph) -> None:
    verify(numbered, after="number_draws")
    (call,) = [node for node in numbered.nodes if node.target == "call"]
    assert call.attr("count") == LAYERS


@pytest.mark.parametrize("spelled", [lambda g: g, apart], ids=["shared", "apart"])
def test_every_draw_of_a_step_has_a_number_of_its_own(numbered: Graph, spelled: Callable[[Graph], Graph]) -> None:
    """The number is what the state has counted, and the site."""
    graph = spelled(numbered)
    verify(graph, after="number_draws")
    plain = unfold(graph)
    counted: dict[str, int] = {}
    found = []
    for node in plain.nodes:
        if node.target == "input" and node.attr("name") == RNG_INPUT:
            counted[node.result.name] = 0
        elif node.target == "autopar.advance":
            counted[node.result.name] = counted[next(node.uses())] + int(str(node.attr("by")))
        elif node.target in DRAWS:
            found.append(counted[str(node.operands[-1])] + int(str(node.attr("site"))))
    assert sorted(found) == list(range(3 * LAYERS + 1))

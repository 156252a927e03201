"""Modules traced once: the graph is the one of a trace of them all, and what differs is never taken for the same."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from autopar.ir.errors import UnsupportedError
from autopar.ir.graph import Graph
from autopar.passes.trace import Traced, trace
from autopar.passes.trace.repeats import Repeats
from tests.families import FAMILIES
from tests.trace import repeating
from tests.trace.repeating import (
    LAYERS,
    WIDTH,
    Block,
    Collecting,
    Collects,
    CountsByIterator,
    CountsInClass,
    CountsInGlobal,
    CountsInList,
    Flagged,
    FlaggedTurns,
    Freezes,
    FrozenTurns,
    GivesView,
    HasBuffer,
    Imports,
    Keeps,
    KeepsAfterwards,
    KeepsIndex,
    KeepsOnAnother,
    KeepsOnOthers,
    KeepsUnseen,
    KeptTurns,
    LearnsToo,
    Nested,
    PassesOn,
    Passing,
    ReadsIndex,
    ReadsIndexByVars,
    ReadsSharedObject,
    ReadsState,
    ReadsTurn,
    ScaledTurns,
    Stack,
    TurnByTurn,
    WritesArgument,
    WrittenTurns,
)


def numbered(graph: Graph) -> list[Any]:
    """The graph without the names of its values."""
    order = {value.name: str(at) for at, value in enumerate(value for node in graph.nodes for value in node.results)}

    def renamed(item: Any) -> Any:
        if isinstance(item, tuple):
            return tuple(map(renamed, item))
        return order.get(item, item) if isinstance(item, str) else item

    nodes: list[Any] = [
        (node.target, [value.type for value in node.results], renamed(node.operands), node.attrs, node.source)
        for node in graph.nodes
    ]
    return [*nodes, renamed(graph.outputs)]


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Traces in both ways, compares the graphs, and gives the number of calls that were not traced. The first try to
    leave some out is the last: one that fails says nothing, and the next takes longer."""
    made: list[Repeats] = []

    class Kept(Repeats):
        def __init__(self, *args: Any, **how: Any) -> None:
            super().__init__(*args, **how)
            made.append(self)

    monkeypatch.setattr(sys.modules["autopar.passes.trace.trace"], "Repeats", Kept)

    def run(model: nn.Module, inputs: Any, loss_fn: Any = None) -> int:
        made.clear()
        once = trace(model, inputs, loss_fn=loss_fn)
        same(once, trace(model, inputs, loss_fn=loss_fn, repeated_once=False))
        assert len(made) == 1
        return len(made[0].calls)

    return run


def same(once: Traced, every: Traced) -> None:
    assert numbered(once.graph) == numbered(every.graph)
    assert once.updates == every.updates
    assert once.input_names == every.input_names
    assert list(once.constants) == list(every.constants)
    assert once.parameters == every.parameters


QUICK = ("gpt2", "llama", "gemma3", "bert", "vit", "resnet", "nn.Transformer", "bloom")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FAMILIES]
)
def test_families_give_the_graph_of_a_whole_trace(name: str, repeated: Callable[..., int]) -> None:
    family = FAMILIES[name]
    model, batch = family.build(), family.batch()
    try:
        trace(model, batch, loss_fn=family.loss_fn, repeated_once=False)
    except UnsupportedError as refusal:
        with pytest.raises(UnsupportedError, match=re.escape(str(refusal))):
            trace(model, batch, loss_fn=family.loss_fn)
    else:
        repeated(model, batch, family.loss_fn)


@pytest.mark.parametrize("name", ["switch", "dbrx"])
def test_experts_that_were_a_loop_are_repeated(name: str, repeated: Callable[..., int]) -> None:
    """Routers of Switch Transformers keep a type and a module that is there already."""
    family = FAMILIES[name]
    assert repeated(family.build(), family.batch()) > 0


@pytest.mark.slow
def test_routers_that_convert_their_weights_are_repeated(repeated: Callable[..., int]) -> None:
    """With all but them in another type."""
    family = FAMILIES["switch"]
    assert repeated(family.build().float(), family.batch()) > 0


def shared(value: Any) -> Callable[[list[Block]], None]:
    def change(blocks: list[Block]) -> None:
        for block in blocks:
            block.shared = value

    return change


def hooked(blocks: list[Block]) -> None:
    blocks[1].inner.register_forward_hook(lambda module, args, out: out * 2)


def frozen(blocks: list[Block]) -> None:
    blocks[1].inner.weight.requires_grad_(False)


def tied(blocks: list[Block]) -> None:
    blocks[2].inner.weight = blocks[0].inner.weight


def acting(blocks: list[Block]) -> None:
    for block in blocks:
        number = block.index + 1
        block.inner.forward = lambda x, n=number: x * n


def one_object(blocks: list[Block]) -> None:
    shared(SimpleNamespace(scale=2.0))(blocks)


def own_objects(blocks: list[Block]) -> None:
    for block in blocks:
        block.shared = SimpleNamespace(scale=float(block.index == 1))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda: Stack(), 2),
        (lambda: Stack(ReadsIndex), 0),
        (lambda: Stack(ReadsIndexByVars), 0),
        (lambda: Stack(ReadsSharedObject, one_object), 2),
        (lambda: Stack(ReadsSharedObject, own_objects), 1),
        (lambda: TurnByTurn(ReadsTurn), 0),
        (lambda: TurnByTurn(Block), 2),
        (lambda: ScaledTurns(ReadsState), 0),
        (lambda: ScaledTurns(Imports), 0),
        (lambda: Collecting(Collects, shared([])), 0),
        (lambda: Stack(WritesArgument), 2),
        (lambda: WrittenTurns(GivesView), 0),
        (lambda: WrittenTurns(Block), 2),
        (lambda: Passing(PassesOn), 2),
        (lambda: Stack(HasBuffer), 2),
        (lambda: FrozenTurns(Block), 1),
        (lambda: FlaggedTurns(Flagged), 1),
        (lambda: Stack(Block, hooked), 1),
        (lambda: Stack(Block, frozen), 1),
        (lambda: Stack(Block, tied), 1),
        (lambda: Stack(Block, acting), 0),
        (lambda: Nested(), 4),
        (lambda: Stack(LearnsToo), 2),
        (lambda: Stack(LearnsToo, shared("made")), 2),
        (lambda: Stack(Freezes), 0),
        (lambda: Stack(Keeps), 2),
        (lambda: KeptTurns(Keeps), 2),
        (lambda: KeptTurns(KeepsIndex), 0),
        (lambda: KeptTurns(KeepsAfterwards), 0),
        (lambda: Stack(KeepsOnAnother), 0),
        (lambda: KeptTurns(KeepsUnseen), 0),
        (lambda: Stack(KeepsOnOthers, shared((nn.Linear(1, 1),))), 1),
    ],
)
def test_only_what_is_the_same_is_traced_once(
    model: Callable[[], nn.Module], expected: int, repeated: Callable[..., int]
) -> None:
    assert repeated(model(), (torch.randn(4, WIDTH),)) == expected


class Plain:
    scale = 1.0


@dataclass(slots=True)
class Slotted:
    scale: float = 1.0


class Hidden:
    __slots__ = ("__scale",)

    @property
    def scale(self) -> float:
        return self.__scale

    @scale.setter
    def scale(self, value: float) -> None:
        self.__scale = value


class Listed(list[float]):
    scale = 1.0


@pytest.mark.parametrize("kind", [SimpleNamespace, Plain, Slotted, Hidden, Listed, Exception])
def test_what_an_object_holds_is_seen_to_change(
    kind: Callable[[], Any], repeated: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeating, "STATE", kind())
    assert repeated(ScaledTurns(ReadsState), (torch.randn(4, WIDTH),)) == 0


def test_layers_that_hand_a_bias_on_are_traced_once(repeated: Callable[..., int]) -> None:
    """T5: of each stack the first layer makes the bias, the second is given it; each more is one call left out."""
    tokens = torch.zeros(2, 8, dtype=torch.long)
    sizes: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "vocab_size": 64}
    sizes["decoder_start_token_id"] = 0

    def left_out(layers: int) -> int:
        config = transformers.T5Config(num_layers=layers, **sizes)
        model = transformers.T5ForConditionalGeneration(config)
        return repeated(model, {"input_ids": tokens, "labels": tokens})

    assert left_out(5) - left_out(3) == 2 * 2


@pytest.mark.parametrize("block", [CountsInGlobal, CountsInClass, CountsInList, CountsByIterator])
def test_blocks_that_count_their_calls_are_traced_one_by_one(block: type[Block]) -> None:
    """Every trace counts on, so two cannot be compared: the numbers in one show that no call was left out."""
    graph = trace(Stack(block), (torch.randn(4, WIDTH),)).graph
    products = [node for node in graph.nodes if node.target == "aten.mul.Tensor" and len(node.operands) == 1]
    assert len({node.attr("other", 1) for node in products}) == LAYERS

"""Stacks of blocks that look alike, each with something in it that a trace of one block alone would miss."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, LAYERS = 8, 3
STATE = types.SimpleNamespace(scale=1.0)
SEEN: list[int] = []
NUMBERS = itertools.count(1)
COUNTED = 0
TURN = 0


class Block(nn.Module):
    """A linear layer and a number that only some blocks read."""

    calls = 0

    def __init__(self, index: int) -> None:
        super().__init__()
        self.inner: Any = nn.Linear(WIDTH, WIDTH)
        self.index = index
        self.shared: Any = None

    def forward(self, x: Tensor) -> Any:
        return torch.tanh(self.inner(x))


class LearnsToo(Block):
    """It asks for a gradient of what it makes, of what it is given or, unseen, of nothing."""

    def forward(self, x: Tensor) -> Any:
        added = x.new_zeros(WIDTH)
        if self.shared == "made":
            added.requires_grad = True
        elif self.shared == "given":
            x.requires_grad = True
        return torch.tanh(self.inner(x) + added)


class Freezes(Block):
    """It freezes its own weight as it runs."""

    def forward(self, x: Tensor) -> Any:
        found = torch.tanh(self.inner(x))
        self.inner.weight.requires_grad = False
        return found


class Stack(nn.Module):
    def __init__(self, block: type[Block] = Block, change: Callable[[list[Block]], None] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        blocks = [block(index) for index in range(LAYERS)]
        if change is not None:
            change(blocks)
        self.blocks = nn.ModuleList(blocks)
        self.first = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Any:
        x = x * self.first
        for turn, block in enumerate(self.blocks):
            x = self.step(turn, block, x)
        return x.sum()

    def step(self, turn: int, block: nn.Module, x: Tensor) -> Any:
        return block(x)


class ReadsIndex(Block):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * (self.index + 1)


class ReadsIndexByVars(Block):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * (vars(self)["index"] + 1)


class ReadsSharedObject(Block):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * self.shared.scale


class CountsInGlobal(Block):
    def forward(self, x: Tensor) -> Any:
        global COUNTED
        COUNTED += 1
        return super().forward(x) * COUNTED


class CountsInClass(Block):
    def forward(self, x: Tensor) -> Any:
        CountsInClass.calls += 1
        return super().forward(x) * CountsInClass.calls


class CountsInList(Block):
    def forward(self, x: Tensor) -> Any:
        SEEN.append(self.inner.in_features)
        return super().forward(x) * len(SEEN)


class CountsByIterator(Block):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * next(NUMBERS)


class ReadsTurn(Block):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * (TURN + 1)


class TurnByTurn(Stack):
    """Says in a global which turn it is."""

    def step(self, turn: int, block: nn.Module, x: Tensor) -> Any:
        global TURN
        TURN = turn
        return block(x)


class ReadsState(Block):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * STATE.scale


class Imports(Block):
    """Reads what another turn of the model changes, through a module that it imports."""

    def forward(self, x: Tensor) -> Any:
        from tests.trace import repeating

        return super().forward(x) * repeating.STATE.scale


class ScaledTurns(Stack):
    """Changes an object that the blocks read."""

    def step(self, turn: int, block: nn.Module, x: Tensor) -> Any:
        STATE.scale = turn + 1.0
        return block(x)


class Collects(Block):
    """Leaves what it computes in a list that the model reads."""

    def forward(self, x: Tensor) -> Any:
        out = super().forward(x)
        self.shared.append(out.sum())
        return out


class Collecting(Stack):
    def forward(self, x: Tensor) -> Any:
        kept: list[Tensor] = self.blocks[0].shared  # type: ignore[assignment]
        kept.clear()
        return super().forward(x) + torch.stack(kept).sum()


class WritesArgument(Block):
    def forward(self, x: Tensor) -> Any:
        x.mul_(2)
        return super().forward(x)


class GivesView(Block):
    def forward(self, x: Tensor) -> Any:
        return x.view(-1, WIDTH)


class WrittenTurns(Stack):
    """Writes into what a block returned."""

    def step(self, turn: int, block: nn.Module, x: Tensor) -> Any:
        out = block(x * 1)
        out.mul_(2)
        return out + x


class PassesOn(Block):
    """Returns its argument beside what it computes."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x, "kept"


class Passing(Stack):
    def step(self, turn: int, block: nn.Module, x: Tensor) -> Any:
        out, given, word = block(x)
        return out + given if word == "kept" and given is x else out


class HasBuffer(Block):
    """Counts its own calls in a buffer."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.count: Any
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        self.count.add_(1.0)
        return super().forward(self.norm(x)) * self.count


class FrozenTurns(Stack):
    """The first blocks learn nothing."""

    def step(self, turn: int, block: nn.Module, x: Tensor) -> Any:
        with torch.set_grad_enabled(turn == LAYERS - 1):
            return block(x if turn == LAYERS - 1 else x.detach())


class Nested(nn.Module):
    """Stacks in a stack."""

    def __init__(self) -> None:
        super().__init__()
        self.stacks = nn.ModuleList(Inner() for _ in range(LAYERS))
        self.first = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Any:
        x = x * self.first
        for stack in self.stacks:
            x = stack(x)
        return x.sum()


class Inner(Stack):
    def forward(self, x: Tensor) -> Any:
        for block in self.blocks:
            x = block(x) + x
        return x


class Flagged(Block):
    def forward(self, x: Tensor, last: bool = False) -> Any:
        return super().forward(x) if last else x + super().forward(x)


class FlaggedTurns(Stack):
    def step(self, turn: int, block: nn.Module, x: Tensor) -> Any:
        return block(x, last=turn == LAYERS - 1)


class Keeps(Block):
    """It keeps a number on itself, and reads it afterwards."""

    def forward(self, x: Tensor) -> Any:
        self.rows = len(x)
        self.inner = self.inner
        return super().forward(x) * self.rows


class KeepsIndex(Block):
    def forward(self, x: Tensor) -> Any:
        self.rows = self.index
        return super().forward(x) * (1 + self.rows)


class KeepsAfterwards(Block):
    """It reads what its last call has kept."""

    rows = 0

    def forward(self, x: Tensor) -> Any:
        found = super().forward(x) * (1 if self.rows >= 0 else 2)
        self.rows = len(x)
        return found


class KeepsOnAnother(Block):
    """One function keeps a number on the block, and on an object that blocks share."""

    def forward(self, x: Tensor) -> Any:
        for owner in (self, STATE):
            keep(owner, len(x))
        return super().forward(x)


def keep(owner: Any, rows: int) -> None:
    owner.rows = rows


class KeepsOnOthers(Block):
    """It keeps a number on a module that is none of its own, where the next one finds it."""

    def forward(self, x: Tensor) -> Any:
        keep(self.shared[0], len(x))
        return super().forward(x)


class KeepsUnseen(Block):
    """It sets its attributes past torch."""

    rows = 0

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "rows":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def forward(self, x: Tensor) -> Any:
        self.rows = len(x)
        return super().forward(x)


class KeptTurns(Stack):
    """Reads what a block kept."""

    def step(self, turn: int, block: Any, x: Tensor) -> Any:
        return block(x) + block.rows * turn

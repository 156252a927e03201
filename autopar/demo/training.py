"""The two runs that the demo compares: the plain model in one process, and the planned one in several.

Both take the same initial weights and the same batches, and do the same things with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import autopar
from autopar.demo import text
from autopar.zoo import find

MAX_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained, on how much, by how many processes. ``mesh=None``: the search decides.

    The learning rate is one at which rounding does not grow: two plain runs that differ in nothing but the
    order of their sums part by 2e-3 in 80 steps at 1e-3, and by 5e-7 at 3e-4.
    """

    layers: int = 6
    width: int = 384
    heads: int = 6
    batch_size: int = 8
    seq_len: int = 128
    steps: int = 80
    processes: int = 2
    learning_rate: float = 3e-4
    warmup: int = 10
    mesh: dict[str, int] | None = None

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.batch_size * self.seq_len


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The plan has been made: its bytes, and the seconds from the start of the search to a ready module."""

    plan: bytes
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step has been made: its number, from 0; its loss before the update; its seconds."""

    number: int
    loss: float
    seconds: float


def make_model(task: Task) -> nn.Module:
    """Hugging Face's ``GPT2LMHeadModel`` on bytes, smaller than published, with its own initial weights."""
    published, _ = find("gpt2").build(layers=task.layers)
    config: Any = published.config
    sizes = {"n_embd": task.width, "n_head": task.heads, "n_positions": task.seq_len}
    config.update({**sizes, "vocab_size": text.VOCABULARY, "bos_token_id": None, "eos_token_id": None})
    torch.manual_seed(0)
    return type(published)(config).train()


def train_plain(task: Task) -> Iterator[Step]:
    """The reference: the model as it is, in this process, on one thread as each of the others has."""
    torch.set_num_threads(1)
    model = make_model(task)

    def forward_backward(batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = model(**batch).loss
        loss.backward()
        return loss.detach()

    yield from _steps(task, model, forward_backward, lambda: nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM))


def train_parallel(rank: int, say: Callable[[Planned | Step], None], task: Task) -> None:
    """One of ``task.processes`` processes: plan, rewrite, train. Rank 0 tells ``say`` what it does."""
    start = time.perf_counter()
    words = text.standard_library()
    example = text.batch(words, 0, batch_size=task.batch_size, seq_len=task.seq_len)
    model = autopar.parallelize(make_model(task), example, mesh=task.mesh)
    if rank == 0:
        say(Planned(plan=model.plan.to_bytes(), seconds=time.perf_counter() - start))

    def forward_backward(batch: dict[str, Tensor]) -> Tensor:
        local = model.shard_inputs(batch)
        assert isinstance(local, dict)
        return model.train_step(**local)

    for step in _steps(task, model, forward_backward, lambda: model.clip_grad_norm_(MAX_NORM)):
        if rank == 0:
            say(step)


def _steps(
    task: Task, model: nn.Module, forward_backward: Callable[[dict[str, Tensor]], Tensor], clip: Callable[[], Any]
) -> Iterator[Step]:
    """Train, telling each step: forward and backward over the global batch, clip, AdamW with a warm-up."""
    words = text.standard_library()
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / task.warmup))
    for number in range(task.steps):
        start = time.perf_counter()
        batch = text.batch(words, number, batch_size=task.batch_size, seq_len=task.seq_len)
        loss = forward_backward(batch)
        clip()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield Step(number=number, loss=loss.item(), seconds=time.perf_counter() - start)

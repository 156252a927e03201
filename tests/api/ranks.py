"""What each process of the agreement tests does: every rank tells how its call of autopar ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import autopar
from tests.parity.processes import NETWORKS

FAIR = str(NETWORKS / "fair.toml")
BATCH = 8


class Net(nn.Module):
    """A classifier that returns its loss; ``wide`` and ``name`` change what a plan is made for."""

    def __init__(self, wide: int = 32, *, name: str = "down", breaks: bool = False, fails: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(16, wide)
        setattr(self, name, nn.Linear(wide, 8))
        self.name, self.breaks, self.fails = name, breaks, fails

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = torch.relu(self.up(x))
        if self.breaks and h.sum() > 0:  # control flow on data cannot be traced
            h = -h
        return nn.functional.cross_entropy(getattr(self, self.name)(h), labels)


class Broken(Mapping[str, int]):
    """Stands for a defect: an error that is not autopar's."""

    def __getitem__(self, key: str) -> int:
        raise ZeroDivisionError("a defect")

    def __iter__(self) -> Iterator[str]:
        raise ZeroDivisionError("a defect")

    def __len__(self) -> int:
        return 1


def example(batch: int = BATCH, dim: int = 16) -> dict[str, Tensor]:
    return {"x": torch.randn(batch, dim), "labels": torch.zeros(batch, dtype=torch.int64)}


def outcome(call: Callable[[], Any]) -> tuple[str, str]:
    """(class of the error, message), or ("none", "")."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 — defects are among what is tested
        return type(error).__name__, str(error)
    return "none", ""


def parallelize(net: nn.Module, inputs: dict[str, Tensor] | None = None, **options: Any) -> autopar.ParallelModule:
    return autopar.parallelize(net, inputs or example(), profile=FAIR, **options)


def disagreements(plan_of_other: str) -> dict[str, tuple[str, str]]:
    """Every way in which ranks can disagree or rank 0 can fail, one after the other in one group."""
    rank = dist.get_rank()
    found = {
        "wider on rank 1": outcome(lambda: parallelize(Net(32 + 32 * rank))),
        "renamed on rank 1": outcome(lambda: parallelize(Net(name="down" if rank == 0 else "out"))),
        "other batch on rank 1": outcome(lambda: parallelize(Net(), example(BATCH * (1 + rank)))),
        "untraceable on rank 1": outcome(lambda: parallelize(Net(breaks=rank == 1))),
        "untraceable on rank 0": outcome(lambda: parallelize(Net(breaks=rank == 0))),
        "too big": outcome(lambda: parallelize(Net(), memory_budget=2000)),
        "wrong mesh on rank 0": outcome(lambda: parallelize(Net(), mesh={"dp": 3 if rank == 0 else 2})),
        "defect on rank 0": outcome(lambda: parallelize(Net(), mesh=Broken() if rank == 0 else None)),
        "defect on rank 1": outcome(lambda: parallelize(Net(), mesh=None if rank == 0 else Broken())),
        "plan for four": outcome(lambda: parallelize(Net(), plan=plan_of_other)),
        "no such plan": outcome(lambda: parallelize(Net(), plan="absent.json")),
    }
    model = parallelize(Net(), mesh={"dp": 2})
    parts: Any = model.shard_inputs(example())
    model.train_step(**parts)
    found["the group still works"] = outcome(lambda: model.train_step(**parts))
    wrong: dict[str, Callable[[], Any]] = {
        "whole batch": lambda: model.train_step(**example()),
        "other width": lambda: model.train_step(**example(BATCH // 2, 15)),
        "other dtype": lambda: model.train_step(x=parts["x"].double(), labels=parts["labels"]),
        "shard of another batch": lambda: model.shard_inputs(example(6)),
        "forward of another batch": lambda: model(**example(6)),
    }
    return found | {name: outcome(call) for name, call in wrong.items()}

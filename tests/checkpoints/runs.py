"""What a process of these tests does: train and save at one layout, load and go on at another."""

from __future__ import annotations

import shutil
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_optimizer_state_dict
from torch.distributed.tensor import DTensor, Shard

import autopar
from autopar.runtime import checkpoint
from autopar.runtime.checkpoint_folder import Folder
from autopar.runtime.module import ParallelModule
from tests.families import FAMILIES
from tests.harness import refusal
from tests.loop import restarts
from tests.loop.restarts import BUILDERS, train
from tests.on_mesh import OnMesh
from tests.state.networks import CASES, linear, made, normal
from tests.state.simulated import FREE


class Narrow(nn.Module):
    """Tensor parallelism leaves 5 of 10 channels, which data parallelism cuts into 3 and 2."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = linear(8, 10), linear(10, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (self.down(self.up(x).tanh()) - x).square().mean()  # type: ignore[no-any-return]


EXTRA = {"step": 2, "scheduler": {"last_epoch": 2, "lrs": [0.1, 0.2]}, "seen": torch.arange(3), "pair": (1, None)}
MORE = 2  # steps before a save, and after


OPTIMIZERS: dict[str, Callable[[nn.Module], optim.Optimizer]] = {
    "adam": restarts.optimizer,
    "sgd": lambda model: optim.SGD(model.parameters(), lr=1e-2),
    "momentum": lambda model: optim.SGD(model.parameters(), lr=1e-2, momentum=0.9),
    "adagrad": lambda model: optim.Adagrad(model.parameters(), lr=1e-2, eps=1e-4),
    "rate in a tensor": lambda model: optim.Adam(model.parameters(), lr=torch.tensor(1e-2), eps=1e-4, foreach=False),
}


@dataclass(frozen=True, kw_only=True)
class Case(OnMesh):
    name: str
    optimizer: str = "adam"

    def __str__(self) -> str:
        return "-".join(self.words(self.name)) + ("" if self.optimizer == "adam" else f"-{self.optimizer}")

    def build(self) -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        if self.name in BUILDERS:
            return BUILDERS[self.name]()
        if self.name in CASES:
            return made(self.name)
        if self.name == "narrow":
            return Narrow(), (normal(8, 8),)
        return FAMILIES[self.name].build(), FAMILIES[self.name].batch()

    def parallel(self) -> tuple[ParallelModule, optim.Optimizer, Any]:
        model, inputs = self.build()
        parallel = autopar.parallelize(model, inputs, mesh=dict(self.mesh), profile=FREE, **self.options)
        return parallel, OPTIMIZERS[self.optimizer](parallel), parallel.shard_inputs(inputs)


def state(model: ParallelModule, optimizer: optim.Optimizer) -> dict[str, Any]:
    """Whole, as functions say that share no code with checkpoints."""
    return {"model": model.full_state_dict(), "optimizer": model.full_optimizer_state_dict(optimizer),
            "run": model.training_state_dict()}  # fmt: skip


def saved(case: Case, path: str) -> dict[str, Any]:
    """What was saved, and what comes of training on without a break. ``odd``: parameters cut twice, unevenly."""
    model, optimizer, batch = case.parallel()
    train(model, optimizer, batch, MORE)
    autopar.save(model, optimizer, path, extra=EXTRA)
    found = state(model, optimizer)
    odd = [name for name, p in model.named_parameters() if isinstance(p, DTensor) and _odd(p)]
    return {**found, "losses": train(model, optimizer, batch, MORE), "end": model.full_state_dict(), "odd": odd}


def _odd(parameter: DTensor) -> bool:
    """FSDP2 cut a dim unevenly that another axis had cut before."""
    strided = any(type(p) is not Shard and not p.is_replicate() for p in parameter.placements)
    sizes = {parameter.to_local().numel() * parameter.device_mesh.size(), parameter.numel()}
    return strided and len(sizes) > 1


def resumed(case: Case, path: str) -> dict[str, Any]:
    """The rest of a run: what was loaded, and what came of it."""
    model, optimizer, batch = case.parallel()
    train(model, optimizer, batch, 1)  # what is loaded replaces what there is
    extra = autopar.load(model, optimizer, path)
    found = state(model, optimizer)
    return {**found, "extra": extra, "losses": train(model, optimizer, batch, MORE), "end": model.full_state_dict()}


def alone(case: Case, path: str, folder: Path) -> dict[str, Any]:
    """The rest of a run by the original model, with torch's own functions."""
    dcp_to_torch_save(path, folder / "one.pt")
    found = torch.load(folder / "one.pt", weights_only=False)
    model, inputs = case.build()
    optimizer = OPTIMIZERS[case.optimizer](model)
    model.load_state_dict(found["model"], strict=True)
    options = StateDictOptions(full_state_dict=True, strict=False)
    set_optimizer_state_dict(model, optimizer, found["optimizer"], options=options)
    losses = train(model, optimizer, inputs, MORE)
    return {"losses": losses, "end": {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}}


def by_torch(case: Case, path: str) -> dict[str, Any]:
    """A run on one device, saved by torch's own functions, and what comes of training on."""
    model, inputs = case.build()
    optimizer = OPTIMIZERS[case.optimizer](model)
    train(model, optimizer, inputs, MORE)
    names, states = get_state_dict(model, optimizer)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        state_dict_saver.save({"model": names, "optimizer": states}, checkpoint_id=path, no_dist=True)
    losses = train(model, optimizer, inputs, MORE)
    return {"losses": losses, "end": {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}}


def folders(case: Case, other: Case, path: str) -> dict[str, Any]:
    """What is told of folders and checkpoints that do not fit, on each rank; and that nothing changed."""
    rank = dist.get_rank()
    model, optimizer, batch = case.parallel()
    train(model, optimizer, batch, 1)
    top = Path(path)
    whole, another = top / "whole", top / "another"
    autopar.save(model, optimizer, whole)
    autopar.save(model, None, top / "model only")
    wrong, steps, _ = other.parallel()
    autopar.save(wrong, steps, another)
    fewer = optim.AdamW(model.parameters())
    before = state(model, optimizer)
    if rank == 0:
        for name, spoil in SPOILED.items():
            shutil.copytree(whole, top / name)
            spoil(top / name)
        (top / "file").write_text("x")
        (top / "full").mkdir()
        (top / "full" / "notes.txt").write_text("x")
    dist.barrier()
    loads = ["nothing there", "file", "full", "another", *SPOILED]
    found: dict[str, Any] = {}
    found.update({name: refusal(autopar.load, model, optimizer, top / name) for name in loads})
    found["no optimizer"] = refusal(autopar.load, model, optimizer, top / "model only")
    found["groups"] = refusal(autopar.load, model, fewer, whole)
    found["one rank"] = refusal(autopar.load, model, optimizer, whole if rank else top / "nothing there")
    found["kind"] = refusal(autopar.load, model, optim.SGD(model.parameters(), momentum=0.9), whole)
    found["optimizer of one rank"] = refusal(autopar.save, model, optimizer if rank else None, whole)
    found["no path"] = refusal(autopar.save, model, optimizer, whole if rank else None)
    found["here"] = refusal(autopar.save, model, optimizer, ".")
    found["no module"] = refusal(autopar.save, nn.Linear(1, 1), optimizer, whole)
    found["scheduler"] = refusal(autopar.save, model, optim.lr_scheduler.ConstantLR(fewer), whole)
    found["class"] = refusal(lambda: autopar.save(model, optimizer, whole, extra=defaultdict(int)))
    found["remote"] = refusal(autopar.save, model, optimizer, "s3://bucket/run")
    found["over a file"] = refusal(autopar.save, model, optimizer, top / "file")
    found["over a folder"] = refusal(autopar.save, model, optimizer, top / "full")
    found["extra"] = refusal(lambda: autopar.save(model, optimizer, whole, extra={"a": [nn.Linear(1, 1)]}))
    optimizer.state[next(iter(model.parameters()))]["row"] = torch.ones(3)
    found["part"] = refusal(autopar.save, model, optimizer, whole)
    del optimizer.state[next(iter(model.parameters()))]["row"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "chunks", lambda tensor: [[(1, size) for size in tensor.to_local().shape]])
        found["chunks"] = refusal(autopar.save, model, optimizer, whole)
    after = state(model, optimizer)
    found["unchanged"] = same(before, after)
    if rank == 0:
        (top / "latest").symlink_to(whole)
        whole.rename(top / ".whole.replaced")  # as a crash between two renames leaves it
        whole.mkdir()
    dist.barrier()
    found["replaced"] = refusal(autopar.load, model, optimizer, whole)
    broken = optim.SGD(model.parameters(), momentum=0.9)
    broken.state[next(iter(model.parameters()))]["unpicklable"] = lambda: None
    found["broken"] = refusal(autopar.save, model, broken, whole)
    found["replaced still"] = (top / ".whole.replaced" / ".metadata").is_file()
    dist.barrier()
    for _ in range(2):
        autopar.save(model, optimizer, top / "latest")
    found["link"] = (top / "latest").is_symlink() and (whole / ".metadata").is_file()
    autopar.load(model, None, whole)
    autopar.load(model, optimizer, whole)
    found["still whole"] = same(before, state(model, optimizer))
    return found


def _shortened(folder: Path) -> None:
    piece = folder / "__1_0.distcp"
    piece.write_bytes(piece.read_bytes()[:-10])


def _without_a_piece(folder: Path) -> None:
    (folder / "__0_0.distcp").unlink()


def _unreadable(folder: Path) -> None:
    (folder / ".metadata").write_bytes(b"not a pickle")


def piped(case: Case, path: str) -> dict[str, str]:
    """What is told where places of a pipeline give other optimizers."""
    model, optimizer, _ = case.parallel()
    last = dist.get_rank() == dist.get_world_size() - 1
    rates = optim.SGD(model.parameters(), lr=0.2 if last else 0.1)
    groups: Any = [{"params": list(model.parameters())}, *([{"params": []}] if last else [])]
    return {
        "none": refusal(autopar.save, model, None if last else optimizer, path),
        "kinds": refusal(autopar.save, model, rates if last else optimizer, path),
        "rates": refusal(autopar.save, model, rates, path),
        "groups": refusal(autopar.save, model, optim.SGD(groups), path),
    }


SPOILED: Mapping[str, Callable[[Path], None]] = {
    "shortened": _shortened, "without a piece": _without_a_piece, "unreadable": _unreadable,
}  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Equal, tensors bit by bit."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def replaced(case: Case, path: str) -> dict[str, Any]:
    """A second save takes the place of the first; one that fails leaves it."""
    model, optimizer, batch = case.parallel()
    train(model, optimizer, batch, 1)
    autopar.save(model, optimizer, path, extra="first")
    train(model, optimizer, batch, 1)
    autopar.save(model, optimizer, path, extra="second")
    second = state(model, optimizer)
    train(model, optimizer, batch, 1)
    broken = optim.SGD(model.parameters(), momentum=0.9)
    broken.state[next(iter(model.parameters()))]["unpicklable"] = lambda: None
    found: dict[str, Any] = {"failed": refusal(autopar.save, model, broken, path)}
    dist.barrier()
    found["beside"] = sorted(entry.name for entry in Path(path).parent.iterdir())
    found["extra"] = autopar.load(model, optimizer, path)
    found["loaded"] = same(second, state(model, optimizer))
    return found


def pretrained(case: Case, path: str) -> dict[str, Any]:
    """What a model on meta has after weights of Hugging Face were loaded; what is told of another's.

    ``experts``: how many tensors of single experts this rank read.
    """
    model, inputs = case.build()
    model.to("meta").tie_weights()  # type: ignore[operator]  # of transformers
    parallel = autopar.parallelize(model, inputs, mesh=dict(case.mesh), profile=FREE, **case.options)
    optimizer = optim.AdamW(parallel.parameters())
    found: dict[str, Any] = {"optimizer": refusal(autopar.load, parallel, optimizer, path)}
    names: list[str] = []
    read = Folder.read

    def noted(self: Folder, tensors: dict[str, Any]) -> None:
        names.extend(tensors)
        read(self, tensors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Folder, "read", noted)
        assert autopar.load(parallel, None, path) is None
    return {**found, "experts": len([*filter(single, names)]), "model": parallel.full_state_dict()}


def single(name: str) -> bool:
    """Whether a tensor of a file is of one expert."""
    *_, behind = name.split(".experts.")
    return behind[0].isdigit()


def refused_weights(case: Case, paths: Mapping[str, str]) -> dict[str, Any]:
    """What is told of weights that do not fit, and that nothing changed."""
    model, _, _ = case.parallel()
    before = model.full_state_dict()
    found: dict[str, Any] = {what: refusal(autopar.load, model, None, path) for what, path in paths.items()}
    return {**found, "unchanged": same(before, model.full_state_dict())}

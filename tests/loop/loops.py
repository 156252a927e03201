"""Training loops as a user of torch writes them, on this process's part and on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn, optim
from torch.distributed.tensor import DTensor

from autopar.runtime.module import ParallelModule
from tests.parity.processes import Case, loss_of, parallel, step

STEPS, MAX_NORM = 3, 0.5
Step = Callable[[Any], Tensor]
Made = Callable[[Iterable[nn.Parameter]], optim.Optimizer]

# eps is large, so that noise in gradients that are zero in exact arithmetic is not blown up.
OPTIMIZERS: dict[str, Made] = {
    "adamw": lambda p: optim.AdamW(p, lr=1e-2, eps=1e-4),
    "adamw foreach": lambda p: optim.AdamW(p, lr=1e-2, eps=1e-4, foreach=True),
    "adamw loop": lambda p: optim.AdamW(p, lr=1e-2, eps=1e-4, foreach=False),
    "adamw fused": lambda p: optim.AdamW(p, lr=1e-2, eps=1e-4, fused=True),
    "adam amsgrad": lambda p: optim.Adam(p, lr=1e-2, eps=1e-4, amsgrad=True, weight_decay=0.1),
    "adam foreach": lambda p: optim.Adam(p, lr=1e-2, eps=1e-4, foreach=True),
    "sgd": lambda p: optim.SGD(p, lr=1e-2),
    "sgd nesterov": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd foreach": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, foreach=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=1e-3, eps=1e-4, momentum=0.5, centered=True),
    "rmsprop foreach": lambda p: optim.RMSprop(p, lr=1e-3, eps=1e-4, foreach=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=1e-2, eps=1e-4),
    "adagrad foreach": lambda p: optim.Adagrad(p, lr=1e-2, eps=1e-4, foreach=True),
    "nadam": lambda p: optim.NAdam(p, lr=1e-2, eps=1e-4),
    "radam": lambda p: optim.RAdam(p, lr=1e-2, eps=1e-4),
    "adadelta": lambda p: optim.Adadelta(p, lr=1e-1, eps=1e-4),
}


def _steps(model: nn.Module, backward: Step, case: Case, make: Made) -> None:
    optimizer = make(model.parameters())
    for index in range(STEPS):
        optimizer.zero_grad()
        backward(case.batch(index))
        optimizer.step()
    model.zero_grad()


def recipe(model: nn.Module, backward: Step, case: Case, clip: Callable[[], Tensor]) -> list[float]:
    """Groups by name, a warm-up and a cosine, two backwards a step, gradients zeroed in place, clipping."""
    decays = [p for name, p in model.named_parameters() if not name.endswith("bias") and "norm" not in name.lower()]
    kept = set(map(id, decays))
    groups = [
        {"params": decays, "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if id(p) not in kept], "weight_decay": 0.0, "lr": 5e-3},
    ]
    optimizer = optim.AdamW(groups, lr=1e-2, eps=1e-4)
    warm = optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2)
    scheduler = optim.lr_scheduler.SequentialLR(
        optimizer, [warm, optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)], milestones=[2]
    )
    found = []
    for index in range(4):
        optimizer.zero_grad(set_to_none=index % 2 == 0)
        found += [float(backward(case.batch(2 * index + part))) for part in range(2)]
        found.append(float(clip()))
        optimizer.step()
        scheduler.step()
        found += [group["lr"] for group in optimizer.param_groups]
    return found


def _alone(case: Case, model: nn.Module) -> Step:
    def backward(batch: Any) -> Tensor:
        loss = loss_of(case, model, batch)
        loss.backward()
        return loss.detach()

    return backward


def state(model: nn.Module) -> dict[str, Tensor]:
    if isinstance(model, ParallelModule):
        return model.full_state_dict()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def expected(case: Case) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, make in OPTIMIZERS.items():
        model = case.build()
        _steps(model, _alone(case, model), case, make)
        found[name] = state(model)
    model = case.build()
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)  # noqa: E731
    found["recipe"] = recipe(model, _alone(case, model), case, clip)
    found["recipe state"] = state(model)
    return found


def train(case: Case) -> dict[str, Any]:
    """The same with a parallel model, whose weights are put back for every optimizer."""
    model = parallel(case)
    start = case.build().state_dict()

    def backward(batch: Any) -> Tensor:
        return step(model, batch)

    found: dict[str, Any] = {}
    for name, make in OPTIMIZERS.items():
        model.load_full_state_dict(start)
        _steps(model, backward, case, make)
        found[name] = state(model)
    model.load_full_state_dict(start)
    found["recipe"] = recipe(model, backward, case, lambda: model.clip_grad_norm_(MAX_NORM))
    found["recipe state"] = state(model)
    found["meshes"] = {
        (p.device_mesh.mesh_dim_names, tuple(map(str, p.placements)))
        for p in model.parameters() if isinstance(p, DTensor)
    }  # fmt: skip
    return found


def forgotten(case: Case) -> list[float]:
    """Losses of evaluation after a forward whose backward never came, then an update; and of one with two backwards."""
    model, alone = parallel(case), case.build()
    found = []
    for run, single in ((model, False), (alone, True)):
        optimizer = optim.SGD(run.parameters(), lr=0.1)
        call: Any = (lambda b: loss_of(case, alone, b)) if single else (lambda b: model(**model.shard_inputs(b)).loss)
        (_alone(case, alone) if single else lambda b: step(model, b))(case.batch(0))
        call(case.batch(1))
        optimizer.step()
        first, second = call(case.batch(1)), call(case.batch(2))
        optimizer.zero_grad()
        (first + second).backward()
        optimizer.step()
        found += [float(first), float(second), float(call(case.batch(0)))]
    return found

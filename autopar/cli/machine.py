"""This machine as a cluster: its GPUs if it has any, else its CPU cores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from autopar.cli.output import note
from autopar.cost_model import Cluster, CostProfile, NodeGroup
from autopar.ir.errors import UsageError
from autopar.passes.cores import usable_cores

_WORD = re.compile(r"[A-Z0-9]+")
_MEMORY = re.compile(r"\d+GB")
_FORM_FACTORS = ("PCIE", "NVL", "SXM")
_GPU_FILES = (Path("/dev/nvidia0"), Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))


def cluster_or_this_machine(spec: str | None, profile: CostProfile) -> Cluster:
    """The cluster that ``spec`` means; without one this machine, with a note that says so."""
    if spec is not None:
        return Cluster.load(spec)
    found = this_machine(profile)
    note(f"no --cluster: taking this machine, {found}")
    return found


def this_machine(profile: CostProfile) -> Cluster:
    """One node. Raises ``UsageError`` for GPUs that the profile does not know or that differ."""
    names = gpu_names()
    if not names:
        return _one_node("CPU", usable_cores())
    devices = {device_of(name, list(profile.data.device)) for name in names}
    if None in devices or len(devices) > 1:
        raise UsageError(
            f"this machine has {', '.join(sorted(set(names)))}; the cost profile {profile.name} has no one "
            f"device for that; give --cluster, such as 1x{len(names)}xDEVICE",
            details={"gpus": names, "known": sorted(profile.data.device)},
        )
    (device,) = devices
    return _one_node(str(device), len(names))


def gpu_names() -> list[str]:
    """The GPUs that torch may use, by its names; torch is imported only where a driver is present."""
    if not any(path.exists() for path in _GPU_FILES):
        return []
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def device_of(gpu: str, known: Sequence[str]) -> str | None:
    """The device of a profile that a driver's name such as ``NVIDIA A100-SXM4-80GB`` means, if one does.

    The chip must agree, and neither memory nor form factor may contradict; what the driver does not
    say (``NVIDIA H200``) is no contradiction. Two devices that fit equally are no answer.
    """
    words = _WORD.findall(gpu.upper())
    scores = {name: score for name in known if (score := _score(words, _WORD.findall(name.upper()))) > 0}
    best = [name for name, score in scores.items() if score == max(scores.values())]
    return best[0] if len(best) == 1 else None


def _score(words: list[str], device: list[str]) -> int:
    """How many words agree; 0 where the chip differs or something contradicts."""
    chip, *rest = device
    if chip not in words:
        return 0
    memory = [word for word in words if _MEMORY.fullmatch(word)]
    form = [factor for factor in _FORM_FACTORS if any(word.startswith(factor) for word in words)]
    score = 1
    for part in rest:
        said = memory if _MEMORY.fullmatch(part) else form if part in _FORM_FACTORS else []
        if said and part not in said:
            return 0
        score += part in said
    return score


def _one_node(device: str, count: int) -> Cluster:
    return Cluster(nodes=(NodeGroup(count=1, gpus=count, device=device),))

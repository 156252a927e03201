"""What the running process group runs on, as a cluster."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from autopar.cost_model import Cluster, NodeGroup, load_profile
from autopar.ir.errors import UsageError

# Device names as drivers report them → devices of the built-in profile.
CUDA_NAMES = (
    ("H200", "H200-SXM"), ("H100", "H100-SXM"), ("GB200", "GB200"), ("B200", "B200-SXM"), ("A100", "A100-SXM-80GB"),
    ("V100-SXM2-32GB", "V100-SXM2-32GB"), ("V100-SXM2", "V100-SXM2-16GB"), ("P100-SXM2", "P100-SXM2-16GB"),
    ("P100-PCIE", "P100-PCIE-16GB"), ("MI300X", "MI300X"),
)  # fmt: skip


def local_device() -> torch.device:
    """This process's device: its GPU, if the machine has one for each local process, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def start_process_group() -> torch.device:
    """The running process group's device; starts a group if torchrun asks for one, or one of a single process."""
    device = local_device()
    if dist.is_initialized():
        # a group started without a backend's name has NCCL for GPUs, and no name
        uses_gpu = "nccl" in str(dist.get_backend_config())
        device = device if uses_gpu else torch.device("cpu")
    elif "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    else:
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = dist.HashStore()  # type: ignore[attr-defined]  # public, but not in __all__
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def running_cluster(device: torch.device) -> Cluster:
    """The cluster of the running process group: equal nodes of LOCAL_WORLD_SIZE devices."""
    world = dist.get_world_size()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if world % local:
        raise UsageError(f"{world} processes do not fill nodes of {local}; give cluster= explicitly")
    return Cluster(nodes=(NodeGroup(count=world // local, gpus=local, device=device_name(device)),))


def device_name(device: torch.device) -> str:
    """Name of the device in the built-in profile. Raises UsageError for one that it does not have."""
    if device.type == "cpu":
        return "CPU"
    reported = torch.cuda.get_device_name(device)
    name = known_gpu(reported)
    if name is None:
        raise UsageError(f"no figures for {reported!r}; give cluster= and a profile that has the device")
    return name


def known_gpu(reported: str) -> str | None:
    """The device of the built-in profile that a driver's name means, if it has it."""
    known = load_profile(None).data.device
    chips = reported.replace("-", " ").split()
    named = ((word, name) for word, name in CUDA_NAMES if word.partition("-")[0] in chips and name in known)
    return next((name for word, name in named if word in reported.replace(" ", "-")), None)

"""``autopar env``: versions and devices, for a bug report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

from autopar.cli import options
from autopar.cli.output import print_json, stdout

PACKAGES = (
    "autopar",
    "torch",
    "transformers",
    "ortools",
    "numpy",
    "networkx",
    "pydantic",
    "typer",
    "rich",
    "jinja2",
    "lightning",
)
VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "NCCL_DEBUG", "AUTOPAR_PLAN")


def env(as_json: options.AsJson = False, debug: options.Debug = False) -> None:
    """Print versions and devices, for a bug report."""
    document = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "packages": {name: version(name) for name in PACKAGES},
        "torch": torch_facts(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }
    if as_json:
        print_json(document)
        return
    from autopar.cli.tables import pairs

    stdout().print(pairs(_rows(document)))


def version(package: str) -> str | None:
    """The installed version; None where the package is absent."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_facts() -> dict[str, Any]:
    """What torch sees: its CUDA, its backends, the GPUs; the reason if it cannot be imported."""
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:
        return {"error": str(error)}
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    available = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        "mpi": dist.is_mpi_available(),
    }
    return {
        "cuda": torch.version.cuda,
        "backends": [name for name, present in available.items() if present],
        "devices": names,
    }


def _rows(document: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [(name, found or "not installed") for name, found in document["packages"].items()]
    rows += [(key, str(document[key])) for key in ("python", "platform", "cores")]
    for key, value in document["torch"].items():
        text = ", ".join(value) if isinstance(value, list) else str(value)
        rows.append((f"torch {key}", text if value else "none"))
    return rows + list(document["variables"].items())

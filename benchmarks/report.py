"""What a benchmark leaves behind: a file that says when and on what it ran, and nothing of whose machine it was."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def hardware() -> str:
    if torch.cuda.is_available():
        return f"1 {torch.cuda.get_device_name()}"
    return f"{os.cpu_count()} CPU cores"


def write(name: str, results: dict[str, Any], folder: Path = RESULTS) -> Path:
    """``results`` with date, hardware and version of torch, as ``folder``/``name``.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    about = {"date": today, "hardware": hardware(), "torch": torch.__version__}
    path.write_text(json.dumps({**about, **results}, indent=1) + "\n")
    return path

"""What every test runs under: one thread a process, no network, reproducible examples where CI is set."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Set before anything imports torch or numpy; processes that a test starts inherit them.
os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# Files that start processes or search for long: they come first, so that no worker is left alone with one of them.
LONG = ("parity", "pipelines", "runtime", "verifying", "loop", "search", "modes", "state", "families", "solve", "api")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(here).parts[0] not in LONG)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """Hold torch to one thread, without importing it for tests that do not need it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)

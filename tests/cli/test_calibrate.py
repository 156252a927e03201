"""``autopar profile calibrate``."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.cost_model import CostProfile
from tests.cli.conftest import Cli


def test_devices_that_are_not_there_are_refused(cli: Cli) -> None:
    for options, text in (
        (("--device", "tpu"), "device 'tpu': one of cpu, cuda"),
        (("--nproc", "1000", "--device", "cpu"), "1000 processes: this machine has"),
        (("--nproc", "0", "--device", "cpu"), "0 processes: this machine has"),
    ):
        result = cli("profile", "calibrate", *options)
        assert result.code == 2
        assert text in result.err


@pytest.mark.slow
def test_the_command_writes_a_profile_that_plans_use(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    result = cli("profile", "calibrate", "--device", "cpu", "-o", path, "--json")
    assert result.code == 0
    assert CostProfile(path).device("CPU").source == result.document["device"]["CPU"]["source"]
    assert cli("profile", "validate", path).code == 0
    shown = cli("plan", "zoo:gpt2", "--layers", "1", "--cluster", "1x2xCPU", "--profile", path, "--batch-size", "2",
                "--seq-len", "64", "--json")  # fmt: skip
    assert shown.code == 0

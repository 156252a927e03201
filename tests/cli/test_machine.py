"""This machine as a cluster."""

from __future__ import annotations

import pytest

from autopar.cli import machine
from autopar.cost_model import load_profile
from autopar.ir.errors import UsageError

PROFILE = load_profile()


@pytest.mark.parametrize(
    ("gpu", "device"),
    [
        ("NVIDIA H200", "H200-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla P100-PCIE-16GB", "P100-PCIE-16GB"),
        ("NVIDIA B200", "B200-SXM"),
        ("NVIDIA GB200", "GB200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA A100-SXM4-40GB", None),
        ("NVIDIA A100 80GB PCIe", None),
        ("Tesla V100", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_drivers_name_is_matched_only_where_nothing_contradicts(gpu, device):
    assert machine.device_of(gpu, list(PROFILE.data.device)) == device


def test_without_gpus_every_usable_core_is_a_device(monkeypatch):
    monkeypatch.setattr(machine, "gpu_names", list)
    monkeypatch.setattr(machine, "usable_cores", lambda: 3)
    assert str(machine.this_machine(PROFILE)) == "1x3xCPU"


def test_equal_gpus_are_one_node(monkeypatch):
    monkeypatch.setattr(machine, "gpu_names", lambda: ["NVIDIA H200"] * 4)
    assert str(machine.this_machine(PROFILE)) == "1x4xH200-SXM"


@pytest.mark.parametrize("names", [["NVIDIA X1"], ["NVIDIA H200", "NVIDIA H100 80GB HBM3"]])
def test_gpus_without_one_device_ask_for_the_cluster(monkeypatch, names):
    monkeypatch.setattr(machine, "gpu_names", lambda: names)
    with pytest.raises(UsageError, match=f"give --cluster, such as 1x{len(names)}xDEVICE"):
        machine.this_machine(PROFILE)


def test_without_a_driver_torch_is_not_asked(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_GPU_FILES", (tmp_path / "absent",))
    assert machine.gpu_names() == []


def test_with_a_driver_but_no_usable_gpu_there_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_GPU_FILES", (tmp_path,))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert machine.gpu_names() == []

"""Which device the running processes compute on."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from autopar.hardware import start_process_group


@pytest.mark.parametrize(
    ("backends", "device"),
    [("cpu:gloo,cuda:nccl", "cuda:0"), ("cuda:nccl", "cuda:0"), ("cpu:gloo,cuda:gloo", "cpu"), ("cpu:gloo", "cpu")],
)
def test_a_gpu_is_used_where_nccl_serves_it(monkeypatch: pytest.MonkeyPatch, backends: str, device: str) -> None:
    """Also where ``init_process_group()`` was called without a backend, whose group has no name of one."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "undefined")
    monkeypatch.setattr(dist, "get_backend_config", lambda: backends)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    assert str(start_process_group()) == device

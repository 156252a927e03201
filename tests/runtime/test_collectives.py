"""Conversions on gloo processes do what the simulated mesh does, forward and backward."""

from __future__ import annotations

import os
import random
import signal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from autopar.ir.convert import Step, convert
from autopar.ir.layout import RSTAR, Layout, P, Partial, R
from autopar.ir.mesh import Mesh
from autopar.runtime.collectives import conversion
from autopar.runtime.moves import of_step
from autopar.runtime.simulate import run_steps
from tests.harness import RunError, run_processes
from tests.ir.test_conversions import SHAPE, random_layout

MESH = Mesh((("a", 2), ("b", 2)))
SEEDS = range(60)


def problem(seed: int) -> tuple[tuple[Step, ...], list[Tensor], list[Tensor]]:
    """Steps, a random value of every rank, and a random gradient of every rank; every third time complex ones."""
    dtype = torch.complex128 if seed % 3 == 0 else torch.float64
    draw = random.Random(seed)
    src, dst = random_layout(draw, MESH, [R, P]), random_layout(draw, MESH, [R, RSTAR, P])
    torch.manual_seed(seed)
    values = [torch.randn(src.local_shape(SHAPE), dtype=dtype) for _ in range(4)]
    gradients = [torch.randn(dst.local_shape(SHAPE), dtype=dtype).conj() for _ in range(4)]
    return convert(src, dst, SHAPE, grad=True), values, gradients


def on_processes() -> list[tuple[Tensor, Tensor]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    found = []
    for seed in SEEDS:
        steps, values, gradients = problem(seed)
        start = values[dist.get_rank()].requires_grad_()
        end = start
        for step in steps:
            end = conversion(of_step(step), mesh.get_group(step.axis))(end)
        (gradient,) = torch.autograd.grad(end, start, gradients[dist.get_rank()])
        found.append((end.detach(), gradient))
    return found


def test_conversions_on_processes_equal_the_simulated_mesh() -> None:
    """Values and gradients, for random ones that no layout would give."""
    found = run_processes(4, on_processes)
    for seed in SEEDS:
        steps, values, gradients = problem(seed)
        start = [value.requires_grad_() for value in values]
        end = run_steps(start, steps)
        torch.autograd.backward(end, gradients)
        for rank in range(4):
            value, gradient = found[rank][seed]
            torch.testing.assert_close(value, end[rank].detach(), msg=f"seed {seed}, rank {rank}: {steps}")
            torch.testing.assert_close(gradient, start[rank].grad, msg=f"seed {seed}, rank {rank}: {steps}")


def maximum() -> tuple[Tensor, bool]:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("a",))
    one = Mesh((("a", 2),))
    before, after = Layout.of(one, {"a": Partial("max")}), Layout.replicated(one)
    (step,) = convert(before, after, (2,), grad=True)
    mine = torch.tensor([[1.0, -5.0], [-3.0, -4.0]][dist.get_rank()], requires_grad=True)
    top = conversion(of_step(step), mesh.get_group("a"))(mine)
    return top.detach(), top.requires_grad


def test_maximum_is_reduced_outside_autograd() -> None:
    for top, differentiable in run_processes(2, maximum):
        assert top.tolist() == [1.0, -4.0]
        assert not differentiable


def fails_on_one_rank() -> None:
    if dist.get_rank() == 1:
        raise ValueError("no luck")
    dist.barrier()


def test_a_failing_process_fails_the_run() -> None:
    """The message is that of the rank that failed; those that wait for it are not waited for."""
    with pytest.raises(RunError, match="no luck"):
        run_processes(2, fails_on_one_rank, timeout_s=30)


def dies_on_one_rank() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.barrier()


def test_a_process_that_a_signal_ends_tells_where_it_was() -> None:
    with pytest.raises(RunError, match="rank 1: died without a word") as caught:
        run_processes(2, dies_on_one_rank, timeout_s=30)
    assert "Segmentation fault" in str(caught.value) and "in dies_on_one_rank" in str(caught.value)

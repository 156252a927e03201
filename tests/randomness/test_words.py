"""The hash: right index on every part of every layout, and bits that look random in every direction."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from autopar.ir.layout import Layout, R
from autopar.ir.mesh import Mesh
from autopar.ir.program import MICROBATCH_AXIS
from autopar.runtime import draws, random_words
from autopar.runtime.random_words import Index, at_microbatch, below, rng_state, whole, words
from autopar.runtime.simulated_mesh import unshard
from tests.ir.test_conversions import SHAPE, random_layout

CPU = torch.device("cpu")
STATE = rng_state(7, 11)


def word(*shape: int, state: Tensor = STATE, draw: int = 0, lane: int = 0) -> Tensor:
    return words(state, draw, whole(shape), CPU, lane=lane)


def index_of(layout: Layout, shape: tuple[int, ...], position: dict[str, int]) -> Index:
    """As lowering and binding make it, the microbatch left to the state."""
    return tuple(
        tuple(
            (f.size, f.axis if f.axis in (None, MICROBATCH_AXIS) else position[f.axis or ""])
            for f in layout.factors(dim, extent)
        )
        for dim, extent in enumerate(shape)
    )


@pytest.mark.parametrize("axes", [("a", "b", "c"), ("a", "b", MICROBATCH_AXIS)], ids=["space", "microbatches"])
@pytest.mark.parametrize("seed", range(30))
def test_the_parts_of_any_layout_are_parts_of_one_whole(axes: tuple[str, ...], seed: int) -> None:
    """Strides, several axes on one dim, time: parts put together are what one device draws."""
    mesh = Mesh(tuple(zip(axes, (2, 3, 2), strict=True)))
    layout = random_layout(random.Random(seed), mesh, [R])
    parts = [
        words(at_microbatch(STATE, p.get(MICROBATCH_AXIS, 0)), 5, index_of(layout, SHAPE, p), CPU)
        for p in mesh.coordinates()
    ]
    assert torch.equal(unshard(parts, layout), word(*SHAPE, draw=5))


def test_numbers_stay_what_they_are() -> None:
    """A run that is continued by another version of autopar draws what it would have drawn."""
    assert STATE.tolist() == [422493291, 650720123, 0, 0]
    assert word(2, 3, draw=1).tolist() == [[2910174822, 1726572746, 4074329401], [455455929, 1413092975, 2725636819]]


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = below(STATE, 0, whole((50, 3, 7)), CPU, 0.3)
    monkeypatch.setattr(random_words, "_CHUNK", 40)
    assert torch.equal(below(STATE, 0, whole((50, 3, 7)), CPU, 0.3), expected)


def test_words_are_of_32_bits_and_uniform() -> None:
    """Chi-square of the upper and of the lower byte of a million words, with 255 degrees of freedom."""
    found = word(1000, 1000)
    assert int(found.min()) >= 0 and int(found.max()) < 2**32
    for byte in (found >> 24, found & 255):
        counts = torch.bincount(byte.flatten(), minlength=256).double()
        chi = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
        assert abs(chi - 255) < 5 * math.sqrt(2 * 255)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 1.0])
def test_the_share_kept_is_what_was_asked_for(share: float) -> None:
    found = below(STATE, 3, whole((1000, 1000)), CPU, share).double()
    assert abs(float(found.mean()) - share) <= 5 * math.sqrt(share * (1 - share)) / 1000
    for means in (found.mean(dim=0), found.mean(dim=1)):  # no row and no column is unlike the others
        assert float((means - share).abs().max()) <= 6 * math.sqrt(share * (1 - share) / 1000) + 1e-12


def correlation(x: Tensor, y: Tensor) -> float:
    """In units of its standard deviation for independent bits of probability 1/2."""
    return float(((x.double() - 0.5) * (y.double() - 0.5)).mean() * 4) * math.sqrt(x.numel())


def test_neighbours_are_independent() -> None:
    """Along rows, columns and diagonals, at distances that are powers of two and others."""
    kept = below(STATE, 0, whole((1024, 1024)), CPU, 0.5)
    for down in (0, 1, 2, 3, 8, 512):
        for right in (0, 1, 2, 3, 7, 64, 256):
            if down or right:
                a, b = kept[: 1024 - down, : 1024 - right], kept[down:, right:]
                assert abs(correlation(a, b)) < 5, (down, right)


@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize("dim", [0, 1], ids=["rows", "columns"])
def test_nothing_repeats_at_any_distance(share: float, dim: int) -> None:
    """Autocorrelation at every distance up to half of the extent; one round of mixing less fails by far."""
    size = 2048
    kept = below(rng_state(3, dim), 0, whole((size, size)), CPU, share)
    normed = (kept.double() - share) / math.sqrt(share * (1 - share))
    power = torch.fft.rfft(normed, dim=dim).abs().square().sum(dim=1 - dim)
    assert float(torch.fft.irfft(power)[1 : size // 2].abs().max()) / size < 6


def test_draws_lanes_steps_and_seeds_are_independent() -> None:
    shape = (512, 512)
    base = word(*shape)
    others = {f"draw {d}": word(*shape, draw=d) for d in (1, 2, 3, 64, 1000)}
    others |= {f"lane {lane}": word(*shape, lane=lane) for lane in (1, 2, 3)}
    others |= {f"step {s}": word(*shape, state=rng_state(7, s)) for s in (0, 10, 12)}
    others |= {f"seed {s}": word(*shape, state=rng_state(s, 11)) for s in (0, 6, 8)}
    for name, other in others.items():
        for bit in (0, 15, 31):
            assert abs(correlation((base >> bit) & 1, (other >> bit) & 1)) < 5, (name, bit)
        assert abs(correlation((base >> 31) & 1, (other.roll(1, 1) >> 31) & 1)) < 5, name
        assert int((base == other).sum()) < 5, name


@pytest.mark.parametrize("bit", [0, 1, 5, 9])
def test_one_bit_of_the_index_changes_half_of_the_word(bit: int) -> None:
    """In the row as in the column."""
    for found in (word(4096, 2), word(2, 4096).T):
        other = found[torch.arange(4096) ^ (1 << bit)]
        flipped = torch.stack([((found ^ other) >> at) & 1 for at in range(32)]).double().mean(dim=(1, 2))
        assert float((flipped - 0.5).abs().max()) < 0.06


def test_no_two_rows_are_alike() -> None:
    found = word(100_000, 4)
    assert torch.unique(found, dim=0).shape[0] == 100_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_uniform_numbers_fill_the_open_interval(dtype: torch.dtype) -> None:
    found = draws.uniform(STATE, shape=(1000, 1000), dtype=dtype, device=CPU)
    assert found.dtype == dtype and 0 < float(found.min()) < 1e-5 and 1 - 1e-5 < float(found.max()) < 1
    assert abs(float(found.double().mean()) - 0.5) < 5 / math.sqrt(12e6)
    assert abs(float(found.double().var()) - 1 / 12) < 5e-4


def test_doubles_have_52_random_bits() -> None:
    scaled = draws.uniform(STATE, shape=(100_000,), dtype=torch.float64, device=CPU) * 2**52
    for bit in (0, 1, 19, 20, 21, 51):
        assert abs(float(((scaled.long() >> bit) & 1).double().mean()) - 0.5) < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_normal_numbers_have_the_moments_of_the_normal(dtype: torch.dtype) -> None:
    found = draws.normal(STATE, shape=(1000, 1000), dtype=dtype, device=CPU).double()
    for power, expected, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((found**power).mean()) - expected) < 5 * math.sqrt(spread) / 1000
    assert bool(found.isfinite().all())


def test_dropout_keeps_one_byte_an_element_for_backward() -> None:
    held: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        held.append(tensor)
        return tensor

    x = torch.ones(64, 32, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y = draws.dropout(x, STATE, p=0.25)
    assert sum(t.numel() * t.element_size() for t in held) == 64 * 32
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y.detach())


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_everything(p: float) -> None:
    assert torch.equal(draws.dropout(torch.ones(8, 8), STATE, p=p), torch.full((8, 8), 1 - p))


def test_a_scalar_and_nothing_can_be_dropped() -> None:
    assert draws.dropout(torch.ones(()), STATE, p=0.5).shape == ()
    assert draws.dropout(torch.ones(3, 0, 2), STATE, p=0.5).shape == (3, 0, 2)


def test_compiled_draws_are_the_same_draws() -> None:
    """Traced whole, without a break: every operation is one that a compiler knows."""
    compiled = torch.compile(draws.dropout, backend="aot_eager", fullgraph=True)
    x = torch.ones(6, 5, 4, dtype=torch.float64)
    assert torch.equal(compiled(x, STATE, p=0.5, site=2), draws.dropout(x, STATE, p=0.5, site=2))

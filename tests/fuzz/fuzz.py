"""One random case: a model, a mesh and a legal plan, simulated and compared with plain torch.

    seed → model and batch → trace → canonical graph → fold → plan for real or random prices → lower → simulate

A case is right if loss and every gradient are torch's, or refused if no placement is legal and the error says so.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch

from autopar.ir.errors import InfeasibleError, LimitReachedError, UnsupportedError
from autopar.ir.mesh import Mesh
from tests.fuzz.layers import LAYERS, MIXTURES
from tests.fuzz.model import Model, Sizes
from tests.parity.any_model import check_against_torch, simulated

TOLERANCE = 1e-9
AXES = ("dp", "tp", "cp", "x")
MIXED_AXES = ("dp", "tp", "ep")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """``refused``: why no plan is legal, empty where one was right."""

    text: str
    refused: str = ""


def draw_mesh(rng: Random, sizes: Sizes, axes: Sequence[str] = AXES) -> Mesh:
    """One axis of 2 to 4 devices or two of 2; dp and ep divide the batch, cp the sequence."""
    extents = {"dp": sizes.batch, "ep": sizes.batch, "cp": sizes.seq}
    count = rng.choice((1, 1, 2))
    size = rng.choice((2, 3, 4)) if count == 1 else 2
    fits = [axis for axis in axes if extents.get(axis, size) % size == 0]
    chosen = rng.sample(fits, min(count, len(fits)))
    if {"dp", "ep"} <= set(chosen) and sizes.batch % size**2:
        chosen.pop()
    return Mesh(tuple((axis, size) for axis in chosen))


def run_case(seed: int, *, mixture: bool = False) -> Outcome:
    """Raise VerificationError or AssertionError, with the case in a note, where the plan is wrong. ``mixture``: a model
    with experts, on axes that may split them."""
    rng = Random(zlib.crc32(str(seed).encode()))
    torch.manual_seed(seed)
    sizes = Sizes.draw(rng)
    model = Model(rng, sizes, MIXTURES if mixture else LAYERS)
    batch = model.inputs(rng)
    mesh = draw_mesh(rng, sizes, MIXED_AXES if mixture else AXES)
    local = math.gcd(sizes.batch // (mesh.size("dp") * mesh.size("ep")), 4)
    microbatches = rng.choice([n for n in (1, 2, 4) if local % n == 0])
    zero, recompute = rng.choice((None, 0, 3)), rng.choice((None, None, "full"))
    folded, real = rng.random() < 0.6, rng.random() < 0.25
    text = (
        f"seed {seed}: {'-'.join(model.kinds)} ×{len(model.stacks)} loss={model.loss} {sizes} mesh({mesh}) "
        f"microbatches={microbatches} zero={zero} recompute={recompute} folded={folded} real={real}"
    )
    try:
        return _run(seed, model, batch, mesh, microbatches, zero, recompute, folded, real, text)
    except Exception as error:
        error.add_note(text)
        raise


def _run(
    seed: int, model: Model, batch: dict[str, torch.Tensor], mesh: Mesh, microbatches: int, zero: int | None,
    recompute: str | None, folded: bool, real: bool, text: str,
) -> Outcome:  # fmt: skip
    try:
        found = simulated(model, batch, mesh, microbatches=microbatches, zero=zero, recompute=recompute,
                          folded=folded, seed=None if real else seed)[1]  # fmt: skip
    except (UnsupportedError, InfeasibleError, LimitReachedError) as error:
        return Outcome(text=text, refused=str(error))
    check_against_torch(found, model, batch, TOLERANCE)
    return Outcome(text=text)

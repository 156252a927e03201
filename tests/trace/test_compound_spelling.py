"""Compound operations and indexing are written as what they are made of, and compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.trace.test_spelling import targets, traced_body

Body = Callable[..., Any]
VIEWS = ("reshape", "permute", "expand", "slice", "split_with_sizes")


def words(body: Body, *shapes: tuple[int, ...]) -> list[str]:
    """The operations of the canonical graph without views."""
    found = [target.split(".")[1] for target in targets(traced_body(body, *shapes))]
    return [name for name in found if name not in (*VIEWS, "full")]


COMPOUND: dict[str, tuple[Body, list[str]]] = {
    "glu": (lambda w: F.glu(w, 1), ["sigmoid", "mul"]),
    "prelu": (lambda w: F.prelu(w, w[0, :, 0, 0]), ["gt", "mul", "where"]),
    "prelu_of_one_slope": (lambda w: F.prelu(w, w[0, 0, 0, :1]), ["gt", "mul", "where"]),
    "clip": (lambda w: w.clip(0, 1), ["clamp"]),
    "largest": (lambda w: w.max(), ["amax"]),
    "smallest_and_largest": (lambda w: w.aminmax(dim=1, keepdim=True), ["amin", "amax"]),
    "variance": (lambda w: w.var((1, 2), unbiased=False, keepdim=True), ["var"]),
    "variance_of_all": (lambda w: w.var(), ["var"]),
    "deviation_and_mean": (lambda w: torch.std_mean(w, -1), ["std", "sum", "div"]),
    "norm": (lambda w: torch.norm(w, 3, -1), ["linalg_vector_norm"]),
    "xor": (lambda w: ((w > 0) ^ (w < 1)) * w, ["gt", "lt", "logical_xor", "mul"]),
    "pixel_shuffle": (lambda w: F.pixel_shuffle(w, 2), []),
    "pixel_unshuffle": (lambda w: F.pixel_unshuffle(w, 2), []),
    "channel_shuffle": (lambda w: F.channel_shuffle(w, 2), []),
    "instance_norm": (lambda w: F.instance_norm(w, weight=w[0, :, 0, 0], eps=0.1), ["group_norm"]),
    "roll_of_all": (lambda w: torch.roll(w, 5), ["roll"]),
    "meshgrid": (lambda w: torch.meshgrid(w[0, 0, 0], w[0, :, 0, 0], indexing="xy"), []),
    "count_nonzero": (lambda w: w.count_nonzero(1), ["ne", "sum"]),
    "sort": (lambda w: w.sort().values, ["sort"]),
    "addbmm": (lambda w: torch.addbmm(w[0, 0], w[0], w[1].mT, beta=2, alpha=3), ["matmul", "mul", "mul", "add"]),
    "matrix_and_vector": (lambda w: w[0, 0] @ w[0, 0, 0], ["matmul"]),
    "vector_and_matrices": (lambda w: w[0, 0, 0] @ w[0].mT, ["matmul"]),
    "inner_product": (lambda w: w[0, 0, 0] @ w[0, 0, 1], ["matmul"]),
    "einsum": (lambda w: torch.einsum("bcij,bckj->bik", w, w), ["matmul"]),
    "cosine_similarity": (
        lambda w: F.cosine_similarity(w, w + 1, dim=-1),
        ["add", *["linalg_vector_norm", "clamp_min", "div"] * 2, "mul", "sum"],
    ),
    "hstack": (lambda w: torch.hstack([w, w]), ["cat"]),
    "fliplr": (lambda w: torch.fliplr(w), ["flip"]),
}


@pytest.mark.parametrize("name", COMPOUND)
def test_a_compound_operation_is_written_out(name: str) -> None:
    body, expected = COMPOUND[name]
    if name == "smallest_and_largest" and torch.__version__ < "2.12":
        pytest.skip("torch 2.11 has no gradient of aminmax")
    assert sorted(words(body, (2, 4, 4, 4))) == sorted(expected)


INDEXING: dict[str, tuple[Body, list[str]]] = {
    "constant": (lambda w: w[:, [-2]], []),
    "row_of_each": (lambda w: w[torch.arange(4), w[:, :, 0].argmax(-1)], ["argmax", "pick"]),
    "rows_of_each": (lambda w: w[torch.arange(4)[:, None], w[:, :3, 0].argsort(-1)], ["argsort", "pick"]),
    "both_leading_dims": (
        lambda w: w[torch.arange(4)[:, None], torch.arange(5), w.argmax(-1)],
        ["argmax", "pick"],
    ),
    "another_order": (
        lambda w: w[torch.arange(5) % 4, w[0, :, :5].argmax(-1)],
        ["arange", "argmax", "remainder", "index"],
    ),
    "not_all_rows": (lambda w: w[torch.arange(3), w[:3, :, 0].argmax(-1)], ["arange", "argmax", "index"]),
    "mask_takes_a_number": (lambda w: _filled(w, w > 0, 2.0), ["gt", "masked_fill"]),
    "mask_of_rows_takes_a_value": (lambda w: _filled(w, w[:, :, 0] > 0, w[0, 0, 0]), ["gt", "where"]),
}


def _filled(w: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    made = w * 1.5
    made[mask] = value
    return made


@pytest.mark.parametrize("name", INDEXING)
def test_indexing_is_as_plain_as_it_can_be(name: str) -> None:
    body, expected = INDEXING[name]
    found = [word for word in words(body, (4, 5, 6)) if word != "mul" or word in expected]
    assert sorted(found) == sorted(expected)


SLICES: dict[str, tuple[Body, int]] = {
    "all_of_it": (lambda w: w[:, 3:] * w[:, :1] + w[:, 1:3].sum(), 1),
    "one_by_one": (lambda w: sum(w[:, at] * at for at in range(1, 5)) * w[:, 0], 1),
    "two_halves": (lambda w: torch.cat([w[..., 3:], w[..., :3]], -1), 0),
    "a_gap": (lambda w: w[:, :1] * w[:, 1:2] * w[:, 4:], 0),
    "an_overlap": (lambda w: w[:, :2] * w[:, 1:3] * w[:, 3:], 0),
    "a_step": (lambda w: w[:, ::2].sum() * w[:, 1:4].sum() * w[:, 4:], 0),
    "two_dims": (lambda w: w[:, :2].sum() * w[:, 2:].sum() * w[..., :3].sum() * w[..., 3:], 0),
}


@pytest.mark.parametrize("name", SLICES)
def test_slices_that_tile_a_dim_are_one_split(name: str) -> None:
    body, splits = SLICES[name]
    found = targets(traced_body(body, (4, 5, 6)))
    assert found.count("aten.split_with_sizes.default") == splits
    assert ("aten.slice.Tensor" in found) == (splits == 0)

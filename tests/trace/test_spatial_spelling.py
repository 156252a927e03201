"""Convolutions and pooling have one canonical spelling each, which computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F

from tests.trace.test_spelling import targets, traced_body

Body = Callable[..., Any]
Shapes = tuple[tuple[int, ...], ...]

CONVOLUTIONS: dict[str, tuple[Body, Shapes]] = {
    "1d": (lambda w, x, b: F.conv1d(x, w, b, stride=2, padding=1), ((4, 6, 3), (2, 6, 9), (4,))),
    "2d_of_groups": (lambda w, x, b: F.conv2d(x, w, b, dilation=2, groups=3), ((6, 2, 3, 2), (2, 6, 7, 5), (6,))),
    "3d": (lambda w, x, b: F.conv3d(x, w, b), ((4, 2, 1, 2, 2), (3, 2, 4, 3, 2), (4,))),
    "valid": (lambda w, x, b: F.conv2d(x, w, b, padding="valid"), ((4, 2, 3, 2), (3, 2, 4, 3), (4,))),
    "same": (lambda w, x, b: F.conv1d(x, w, b, padding="same", dilation=2), ((4, 2, 3), (3, 2, 7), (4,))),
    "one_picture": (lambda w, x, b: F.conv2d(x, w, b), ((4, 2, 3, 2), (2, 4, 3), (4,))),
    "transposed_1d": (lambda w, x, b: F.conv_transpose1d(x, w, b, stride=3), ((6, 4, 3), (2, 6, 5), (4,))),
    "transposed_2d_of_groups": (
        lambda w, x, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1, groups=2),
        ((6, 2, 3, 3), (2, 6, 5, 4), (4,)),
    ),
    "transposed_3d": (lambda w, x, b: F.conv_transpose3d(x, w, b), ((2, 3, 2, 2, 1), (2, 2, 3, 2, 2), (3,))),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_one_operation_with_the_bias_added_after(name: str) -> None:
    body, shapes = CONVOLUTIONS[name]
    found = [target for target in targets(traced_body(body, *shapes)) if target != "aten.reshape.default"]
    assert found == ["aten.convolution.default", "aten.add.Tensor"]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_same_padding_of_an_even_kernel_puts_the_odd_element_last() -> None:
    graph = traced_body(lambda w, x: F.conv2d(x, w, padding="same"), (4, 2, 3, 4), (3, 2, 5, 6))
    assert targets(graph) == ["aten.pad.default", "aten.convolution.default"]
    assert graph.nodes[-2].attr("pad") == (0, 1, 0, 0)


POOLS: dict[str, tuple[Body, list[str]]] = {
    "max": (lambda w: F.max_pool2d(w, 3, 2, padding=1), ["aten.max_pool2d.default"]),
    "mean_of_all": (lambda w: F.adaptive_avg_pool2d(w, 1), ["aten.sum.dim_IntList", "aten.div.Tensor"]),
    "mean_of_a_dim": (
        lambda w: F.adaptive_avg_pool2d(w, (1, 3)),
        ["aten.sum.dim_IntList", "aten.div.Tensor", "aten.avg_pool2d.default"],
    ),
    "nothing": (lambda w: F.adaptive_avg_pool2d(w, (4, 6)), []),
    "equal_windows": (lambda w: F.adaptive_avg_pool2d(w, (2, 2)), ["aten.avg_pool2d.default"]),
    "unequal_windows": (lambda w: F.adaptive_avg_pool2d(w, 4), ["aten.adaptive_avg_pool2d.default"]),
    "largest": (lambda w: F.adaptive_max_pool2d(w, 2), ["aten.adaptive_max_pool2d.default"]),
}


@pytest.mark.parametrize("name", POOLS)
def test_pooling_has_one_spelling(name: str) -> None:
    body, expected = POOLS[name]
    assert targets(traced_body(body, (2, 3, 4, 6))) == expected


def test_numbers_of_windows_are_written_out_for_each_dim() -> None:
    graph = traced_body(lambda w: F.avg_pool2d(w, 2), (2, 3, 4, 6))
    assert dict(graph.nodes[-1].attrs) == {"kernel_size": (2, 2), "stride": (2, 2)}

"""Example calls of the operations on pictures, volumes and sound."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.ir.types import Attr
from tests.rules.example import Arg, Example, call, f


def _convolution(x: Arg, w: Arg, **changes: Attr) -> Example:
    count = len(x.shape) - 2
    attrs: dict[str, Attr] = {
        "stride": (1,) * count, "padding": (0,) * count, "dilation": (1,) * count, "transposed": False,
        "output_padding": (0,) * count, "groups": 1,
    }  # fmt: skip
    return call("aten.convolution.default", x, w, **{**attrs, **changes})


def _convolutions() -> Iterator[Example]:
    yield _convolution(f(12, 4, 7), f(6, 4, 3), padding=(1,))
    yield _convolution(f(4, 12, 5, 6), f(12, 12, 3, 2), stride=(2, 1), dilation=(1, 2))
    yield _convolution(f(2, 3, 3, 4, 2), f(4, 3, 2, 2, 2))
    yield _convolution(f(1, 12, 9), f(12, 1, 4), padding=(3,), groups=12)
    yield _convolution(f(2, 12, 4), f(24, 1, 3), groups=12)
    yield _convolution(f(2, 16, 5), f(8, 4, 3), groups=4)
    yield _convolution(f(4, 6, 4), f(12, 3, 1), groups=2)
    # windows that meet: patches, and single elements
    yield _convolution(f(2, 3, 8, 24), f(6, 3, 2, 4), stride=(2, 4))
    yield _convolution(f(2, 4, 12), f(3, 4, 1))
    yield _convolution(f(2, 4, 9), f(3, 4, 4), stride=(4,))
    yield _convolution(f(4, 12, 5), f(12, 6, 3), stride=(2,), transposed=True, output_padding=(1,))
    yield _convolution(f(2, 12, 3, 4), f(12, 2, 2, 3), transposed=True, groups=4, padding=(1, 1))
    yield _convolution(f(2, 4, 4, 12), f(4, 6, 3, 2), stride=(3, 2), transposed=True)


def _pools() -> Iterator[Example]:
    for kind in ("max", "avg"):
        yield call(f"aten.{kind}_pool1d.default", f(4, 6, 12), kernel_size=(3,), stride=(2,), padding=(1,))
        yield call(f"aten.{kind}_pool1d.default", f(12, 12), kernel_size=(3,), stride=(3,))
        yield call(f"aten.{kind}_pool2d.default", f(4, 3, 8, 5), kernel_size=(2, 2), stride=(2, 2))
        yield call(f"aten.{kind}_pool2d.default", f(4, 12, 24, 6), kernel_size=(2, 1), stride=(2, 1))
        yield call(f"aten.{kind}_pool2d.default", f(1, 12, 6, 6), kernel_size=(3, 3), stride=(2, 2), ceil_mode=True)
        yield call(f"aten.{kind}_pool3d.default", f(2, 4, 4, 5, 4), kernel_size=(2, 3, 2), stride=(2, 1, 2))
    yield call("aten.max_pool1d.default", f(2, 4, 12), kernel_size=(2,), stride=(2,), dilation=(2,))
    for count in (1, 2, 3):
        x = f(4, 3, *(4, 12, 2)[:count])
        attrs: dict[str, Attr] = {"kernel_size": (2,) * count, "stride": (2,) * count}
        yield call(f"aten.max_pool{count}d_with_indices.default", x, **attrs)
        for kind in ("max", "avg"):
            yield call(f"aten.adaptive_{kind}_pool{count}d.default", x, output_size=(3, 5, 1)[:count])


def _resampled() -> Iterator[Example]:
    linear = ("linear", "bilinear", "trilinear")
    for n in (1, 2, 3):
        x, size = f(4, 3, *(3, 2, 2)[:n]), (5, 4, 3)[:n]
        yield call(f"aten.upsample_nearest{n}d.vec", x, output_size=size)
        yield call(f"aten.upsample_nearest{n}d.vec", x, scale_factors=(2.0,) * n)
        yield call(f"aten._upsample_nearest_exact{n}d.vec", x, output_size=size)
        yield call(f"aten.upsample_{linear[n - 1]}{n}d.vec", x, output_size=size, align_corners=False)
    for kind in ("bilinear", "bicubic"):
        yield call(f"aten._upsample_{kind}2d_aa.vec", f(2, 4, 6, 6), output_size=(4, 3), align_corners=False)
    yield call("aten.upsample_bicubic2d.vec", f(12, 1, 3, 3), align_corners=True, scale_factors=(2.0, 1.5))
    sizes: dict[str, Attr] = {"kernel_size": (2, 3), "dilation": (1, 1), "padding": (1, 0), "stride": (1, 2)}
    yield call("aten.im2col.default", f(4, 12, 3, 7), **sizes)
    yield call("aten.im2col.default", f(12, 3, 7), **sizes)
    yield call("aten.col2im.default", f(4, 72, 12), output_size=(3, 7), **sizes)
    yield call("aten.unfold.default", f(4, 12, 3), dimension=1, size=3, step=2)
    yield call("aten.unfold.default", f(5, 24), dimension=-1, size=2, step=2)
    yield call("aten.roll.default", f(4, 6, 12), shifts=(1, -2), dims=(0, 2))
    yield call("aten.flip.default", f(4, 6, 12), dims=(1,))
    grid: dict[str, Attr] = {"interpolation_mode": 0, "padding_mode": 0, "align_corners": False}
    yield call("aten.grid_sampler.default", f(2, 12, 3, 5), f(2, 4, 6, 2), **grid)
    yield call("aten.grid_sampler.default", f(2, 4, 2, 3, 3), f(2, 1, 4, 3, 3), **grid)
    for x, groups in ((f(4, 12, 5), 4), (f(2, 12, 2, 3), 12), (f(4, 6), 3)):
        yield call("aten.group_norm.default", x, f(x.shape[1]), f(x.shape[1]), num_groups=groups)
    yield call("aten.group_norm.default", f(12, 4, 3), num_groups=2, eps=0.1)


def _recurrent() -> Iterator[Example]:
    attrs: dict[str, Attr] = {"has_biases": True, "num_layers": 1, "dropout": 0.0, "train": True}
    one: dict[str, Attr] = {**attrs, "bidirectional": False, "batch_first": True}
    two: dict[str, Attr] = {**attrs, "bidirectional": True, "batch_first": False}
    for kind, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
        weights = (f(gates * 5, 3), f(gates * 5, 5), f(gates * 5), f(gates * 5))
        states = ((1, 4, 5), (2, 6, 5))
        for (layers, batch, hidden), chosen in zip(states, (one, two), strict=True):
            x = f(batch, 3, 3) if chosen is one else f(3, batch, 3)
            state = f(layers, batch, hidden)
            given = (state, state) if kind == "lstm" else state
            yield call(f"aten.{kind}.input", x, given, weights * layers, **chosen)


SPATIAL: list[Example] = [*_convolutions(), *_pools(), *_resampled(), *_recurrent()]

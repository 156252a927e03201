"""Rows of the op table: pictures, volumes, sound and recurrent networks."""

from __future__ import annotations

from collections.abc import Callable

Rule = Callable[..., None]


def spatial_rows(rule: Rule) -> None:
    rule("aten.convolution.default", "convolution", flops="2 n g co ci t* k*", saves=(0, 1), crossed=True,
         op_class="conv")  # fmt: skip
    for n in (1, 2, 3):
        rule(f"aten.max_pool{n}d.default", "pool", saves=(0,), op_class="reduction")
        rule(f"aten.max_pool{n}d_with_indices.default", "pool", saves=(0,), op_class="reduction")
        rule(f"aten.avg_pool{n}d.default", "pool", partial="0", saves=(0,), op_class="reduction")
        rule(f"aten.adaptive_avg_pool{n}d.default", "resize", partial="0", saves=(0,), op_class="reduction")
        rule(f"aten.adaptive_max_pool{n}d.default", "resize", saves=(0,), op_class="reduction")
    for name in ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d",
                 "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_nearest_exact1d",
                 "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "_upsample_bilinear2d_aa",
                 "_upsample_bicubic2d_aa"):  # fmt: skip
        rule(f"aten.{name}.vec", "resize", partial="0", backward=1.0, op_class="reduction")
    for name in ("im2col", "col2im"):
        rule(f"aten.{name}.default", "columns", partial="0", backward=1.0)
    rule("aten.unfold.default", "sliding", partial="0", backward=1.0)
    for name in ("roll", "flip"):
        rule(f"aten.{name}.default", "turned", backward=1.0)
    rule("aten.grid_sampler.default", "grid_sample", partial="0", saves=(0, 1))
    rule("aten.group_norm.default", "group_norm", saves=(0,), op_class="reduction")
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        rule(f"aten.{name}.input", "recurrent", flops="2 b t w", saves=(0, "r"), op_class="recurrent")

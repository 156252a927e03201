"""Rows of the op table: operations of our own, which passes put in place of torch's."""

from __future__ import annotations

from collections.abc import Callable

Rule = Callable[..., None]


def state_rows(rule: Rule) -> None:
    # What a program changes besides its results: buffers, whole on every device, after the forward.
    rule("autopar.assign", "assign", partial="0", backward=0.0, op_class="view")

    # A value whose gradient another has, times slopes: custom functions of autograd.
    rule("autopar.sloped", "*b, *b, *b -> *b", saves=(2,), backward=1.0)

    # Draws by hash: each device knows where its elements stand in the whole. ``!state``: autopar.rng. A word
    # takes 11 passes over 8 bytes an element; a uniform number is made of one or two, a normal one of two or four.
    rule("autopar.dropout", "*b, !state -> *b", partial="0", backward=1.0, saves=("mask",), work_bytes=185)
    rule("autopar.uniform", "!state -> *b", backward=0.0, work_bytes=260)
    rule("autopar.normal", "!state -> *b", backward=0.0, work_bytes=600)
    rule("autopar.sdpa_dropout", "drawn_attention", flops="4 b* g h sq sk d", backward=2.5, saves=(0, 1, 2, "r"),
         op_class="attention", contiguous=("sq",))  # fmt: skip
    rule("autopar.advance", "!state -> !state", op_class="view")


def cross_entropy_rows(rule: Rule) -> None:
    # The parts of cross-entropy: with the classes sharded, row_max and the stats are Partial on that axis
    # and 3 or 4 numbers a row are reduced; the logits are never gathered.
    rule("autopar.row_max", "*b v -> *b", reduce="max", op_class="loss", backward=0.0, uneven=("v",), classes=True)
    for name, spec, kept in (
        ("cross_entropy_stats", "*b v, *b, *b, v -> *b !stat", (0,)),
        ("soft_cross_entropy_stats", "*b v, *b v, *b, v -> *b !stat", (0, 1)),
    ):
        uneven = () if name.startswith("soft") else ("v",)
        rule(f"autopar.{name}", spec, saves=kept, op_class="loss", contiguous=("v",), uneven=uneven, classes=True)
    for name, spec, kept in (
        ("cross_entropy_from_stats", "*b !stat, *b ->", (0,)),
        ("cross_entropy_rows_from_stats", "*b !stat, *b -> *b", (0,)),
        ("cross_entropy", "*b !v, *b, !v ->", (0,)),
        ("cross_entropy_rows", "*b !v, *b, !v -> *b", (0,)),
        ("soft_cross_entropy_rows", "*b !v, *b !v, !v -> *b", (0, 1)),
    ):
        rule(f"autopar.{name}", spec, saves=kept, op_class="loss")
    rule("autopar.count_targets", "*b, !w ->", backward=0.0, op_class="loss")


def delta_rule_rows(rule: Rule) -> None:
    # Of each chunk two products of keys, two triangular systems and one product with the values; of each token three
    # with the state. All that autograd keeps is written once and read once; the function computes in float32.
    rule("autopar.delta_rule", "delta_rule", flops="6 b s h r d v + 5 b s h r c d + 3 b s h r c v",
         moved="2 b s h r kept", inner="b s h r kept", computes="f32", op_class="attention")  # fmt: skip


def expert_rows(rule: Rule) -> None:
    # Each token goes through k of the experts: two products, gated between, of rows put in their order and back.
    rule("autopar.experts", "experts", flops="2 t k h i products e /all", saves=(0, 1, 2, 3, 4, 6),
         moved="4 t k h e /all + 2 t k i products e /all", inner="t k i c e /all", exchanged="t k h e /all",
         marks="t k i marked e /all", op_class="matmul", contiguous=("e",))  # fmt: skip
    rule("autopar.expert_bias", "t !k, t !k, e h -> t h", partial="2", flops="2 t e h", saves=(0, 1, 2),
         contiguous=("e",))  # fmt: skip

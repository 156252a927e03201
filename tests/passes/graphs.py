"""Small graphs in text form that several tests lower."""

from __future__ import annotations

MLP = """
graph @mlp {
  %x: f64[8,12] = input() {name="x"}
  %a: f64[24,12] = param() {fqn="up"}
  %b: f64[12,24] = param() {fqn="down"}
  %c: f64[12] = param() {fqn="bias"}
  %h: f64[8,24] = aten.linear.default(%x, %a) {}
  %r: f64[8,24] = aten.relu.default(%h) {}
  %y: f64[8,12] = aten.linear.default(%r, %b) {}
  %z: f64[8,12] = aten.add.Tensor(%y, %c) {}
  %s: f64[8,12] = aten.tanh.default(%z) {}
  %l: f64[] = aten.sum.default(%s) {}
  return %l
}
"""

QKV = """
graph @qkv {
  %x: f64[2,4,8] = input() {name="x"}
  %e: f64[8,8] = param() {fqn="e"}
  %wq: f64[8,8] = param() {fqn="q"}
  %wk: f64[8,8] = param() {fqn="k"}
  %wv: f64[8,8] = param() {fqn="v"}
  %h: f64[2,4,8] = aten.linear.default(%x, %e) {}
  %q: f64[2,4,8] = aten.linear.default(%h, %wq) {}
  %k: f64[2,4,8] = aten.linear.default(%h, %wk) {}
  %v: f64[2,4,8] = aten.linear.default(%h, %wv) {}
  %a: f64[2,4,8] = aten.mul.Tensor(%q, %k) {}
  %b: f64[2,4,8] = aten.mul.Tensor(%a, %v) {}
  %r: f64[2,4,8] = aten.relu.default(%h) {}
  %s: f64[2,4,8] = aten.mul.Tensor(%b, %r) {}
  %l: f64[] = aten.sum.default(%s) {}
  return %l
}
"""

FUSED = """
graph @fused {
  %x: f64[2,4,8] = input() {name="x"}
  %w: f64[24,8] = param() {fqn="qkv"}
  %y: f64[2,4,24] = aten.linear.default(%x, %w) {}
  %q: f64[2,4,8], %k: f64[2,4,8], %v: f64[2,4,8] = aten.split_with_sizes.default(%y) {dim=2, split_sizes=(8, 8, 8)}
  %a: f64[2,4,8] = aten.mul.Tensor(%q, %k) {}
  %s: f64[2,4,8] = aten.mul.Tensor(%a, %v) {}
  %l: f64[] = aten.sum.default(%s) {}
  return %l
}
"""

ATTENTION = """
graph @attention {
  %q: f64[2,8,4,2] = param() {fqn="q"}
  %k: f64[2,2,4,2] = param() {fqn="k"}
  %v: f64[2,2,4,2] = param() {fqn="v"}
  %y: f64[2,8,4,2] = aten.scaled_dot_product_attention.default(%q, %k, %v) {enable_gqa=true, is_causal=true}
  %z: f64[2,8,4,2] = aten.tanh.default(%y) {}
  %l: f64[] = aten.sum.default(%z) {}
  return %l
}
"""

TIED = """
graph @tied {
  %i: i64[4,3] = input() {name="i"}
  %t: i64[4,3] = input() {name="t"}
  %e: f64[16,8] = param() {fqn="e"}
  %h: f64[4,3,8] = aten.embedding.default(%e, %i) {}
  %y: f64[4,3,16] = aten.linear.default(%h, %e) {}
  %m: f64[4,3] = autopar.row_max(%y) {}
  %s: f64[4,3,2] = autopar.cross_entropy_stats(%y, %t, %m) {ignore_index=-100}
  %u: f64[] = autopar.cross_entropy_from_stats(%s, %t) {ignore_index=-100}
  %c: f64[] = autopar.count_targets(%t) {dtype="f64", ignore_index=-100}
  %l: f64[] = aten.div.Tensor(%u, %c) {}
  return %l
}
"""

NORM = """
graph @norm {
  %x: f64[2,4,8] = input() {name="x"}
  %w: f64[8] = param() {fqn="w"}
  %b: f64[8] = param() {fqn="b"}
  %y: f64[2,4,8] = aten.layer_norm.default(%x, %w, %b) {normalized_shape=(8,)}
  %l: f64[] = aten.sum.default(%y) {}
  return %l
}
"""

HEADS = """
graph @heads {
  %x: f64[2,6,8] = param() {fqn="x"}
  %h: f64[2,6,4,2] = aten.reshape.default(%x) {shape=(2, 6, 4, 2)}
  %p: f64[2,4,6,2] = aten.permute.default(%h) {dims=(0, 2, 1, 3)}
  %f: f64[8,12] = aten.reshape.default(%p) {shape=(8, 12)}
  %n: f64[1,8,12] = aten.reshape.default(%f) {shape=(1, 8, 12)}
  %g: f64[5,8,12] = aten.expand.default(%n) {size=(5, 8, 12)}
  %t: f64[5,8,12] = aten.tanh.default(%g) {}
  %l: f64[] = aten.sum.default(%t) {}
  return %l
}
"""

"""What a model returns is worked out in the finer type where it rounds on the way, and nothing else is."""

from __future__ import annotations

from autopar.ir.live import live
from autopar.ir.text import parse_graph
from autopar.passes.unrounded import unrounded

TERMS = """
graph @terms {
  %a: f32[] = input() {name="a"}
  %b: f32[] = input() {name="b"}
  %c: bf16[4] = input() {name="c"}
  %r: bf16[] = aten.to.dtype(%a) {dtype="bf16"}
  %t: bf16[] = aten.to.dtype(%b) {dtype="bf16"}
  %h: bf16[] = aten.div.Tensor(%t) {other=2.0}
  %s: bf16[] = aten.add.Tensor(%r, %h) {}
  %n: bf16[] = aten.neg.default(%s) {}
  %w: f32[] = aten.to.dtype(%n) {dtype="f32"}
  %e: bf16[] = aten.exp.default(%r) {}
  %m: bf16[] = aten.mean.default(%c) {}
  %p: bf16[] = aten.add.Tensor(%m, %m) {}
  %x: bf16[4] = aten.add.Tensor(%c, %r) {}
  return OUTPUTS
}
"""


def result(*outputs: str) -> list[str]:
    graph = parse_graph(TERMS.replace("OUTPUTS", ", ".join(f"%{name}" for name in outputs)))
    found = live(unrounded(graph))
    types = found.values()
    made = [f"{n.target.split('.')[1]}({','.join(n.uses())})" for n in found.nodes if n.target.startswith("aten")]
    return [*made, "->", *(types[name].type.dtype for name in found.outputs)]


def test_a_rounded_number_is_returned_as_it_was() -> None:
    assert result("r") == ["->", "f32"]


def test_sums_and_multiples_of_rounded_numbers_are_those_of_what_was_rounded() -> None:
    assert result("s") == ["div(b)", "add(a,h_unrounded)", "->", "f32"]
    assert result("w") == ["div(b)", "add(a,h_unrounded)", "neg(s_unrounded)", "->", "f32"]


def test_what_others_use_stays_rounded() -> None:
    assert result("s", "e") == ["to(a)", "div(b)", "add(a,h_unrounded)", "exp(r)", "->", "f32", "bf16"]
    assert result("x", "r") == ["to(a)", "add(c,r)", "->", "bf16", "f32"]


def test_what_was_never_finer_stays() -> None:
    assert result("p") == ["mean(c)", "add(m,m)", "->", "bf16"]

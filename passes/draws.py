"""Operations that draw random numbers, in terms of three of our own that draw by hash.

    autopar.dropout(%x, %rng) {p}     autopar.uniform(%rng) {shape}     autopar.normal(%rng) {shape}

``%rng`` is an input of the program, ``autopar.rng``. torch's generators draw in sequence, so no two plans
would draw alike; what a hash of seed, step, draw and global index gives is the same for every plan.
Dropout inside of attention: attention is written out (``rng="exact"``), or stays fused and each device
draws with a seed of its own (``autopar.sdpa_dropout``, ``rng="fast"``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from autopar.ir.graph import Graph, Node, renamed
from autopar.ir.program import RNG_INPUT
from autopar.ir.types import FLOAT_DTYPES, Attr, TensorType
from autopar.passes.canonical_arith import plain
from autopar.passes.canonical_emit import DETACH, Emitter, finished
from autopar.passes.canonical_flatten import broadcast_or_sink
from autopar.passes.canonical_views import Rule, cast, operand
from autopar.passes.drawn_attention import ATTENTION, with_fused_dropout, written_out

RNG_TYPE = TensorType("i64", (4,))
# Of alpha_dropout: what a dropped element becomes is minus this.
_ALPHA = 1.7580993408473766


def open_draws(graph: Graph, *, rng: str = "exact") -> Graph:
    """Every operation that draws, as far as we can, by hash; ``passes/randomness.py`` refuses the others.

    Requires: a canonical graph, one level. Ensures: canonical; without random operations the graph itself.
    """
    attention: Rule = _with_rng(written_out if rng == "exact" else with_fused_dropout)
    if not any(_rule(node, attention) for node in graph.nodes):
        return graph
    em = Emitter(broadcast_or_sink)
    names: dict[str, str] = {}
    for node in graph.nodes:
        em.source = node.source
        results = (_rule(node, attention) or plain)(em, renamed(node, names))
        names.update((old.name, new) for old, new in zip(node.results, results, strict=True))
    return finished(graph, em.nodes, tuple(names[name] for name in graph.outputs))


def _rule(node: Node, attention: Rule) -> Rule | None:
    if node.target == ATTENTION:
        return attention if node.attr("dropout_p") else None
    return RULES.get(node.target)


def rng_of(em: Emitter) -> str:
    """The input that all draws use: one, since equal parameter-free nodes are."""
    return em.raw("input", (), {"name": RNG_INPUT}, (RNG_TYPE,))[0]


def _with_rng(rule: Callable[[Emitter, Node, str], tuple[str, ...]]) -> Rule:
    return lambda em, node: rule(em, node, rng_of(em))


def _number(value: Attr) -> float:
    assert isinstance(value, (int, float)), value
    return value


def _draw(em: Emitter, kind: str, type_: TensorType) -> str:
    """``autopar.uniform`` or ``.normal`` in the shape of ``type_``; half precision is drawn in f32."""
    dtype = type_.dtype if type_.dtype in ("f32", "f64") else "f32"
    drawn = em.op(f"autopar.{kind}", rng_of(em), type=TensorType(dtype, type_.shape), shape=type_.shape)
    return cast(em, drawn, type_.dtype) if type_.dtype in FLOAT_DTYPES else drawn


def _scaled(em: Emitter, x: str, scale: float, shift: float) -> str:
    """``x · scale + shift``."""
    if scale != 1:
        x = em.op("aten.mul.Tensor", x, type=em.types[x], other=scale)
    return em.op("aten.add.Tensor", x, type=em.types[x], other=shift) if shift else x


def _kept(em: Emitter, shape: tuple[int, ...], p: float, dtype: str) -> str:
    """1 with probability 1 - p, else 0."""
    drawn = _draw(em, "uniform", TensorType("f32", shape))
    return cast(em, em.op("aten.ge.Tensor", drawn, type=TensorType("bool", shape), other=p), dtype)


def _dropout(em: Emitter, node: Node) -> tuple[str, ...]:
    p = _number(node.attr("p", 0.5))
    return (em.op("autopar.dropout", operand(node), rng_of(em), type=node.results[0].type, p=p),)


def _native_dropout(em: Emitter, node: Node) -> tuple[str, ...]:
    """Returns the mask too, so that it must be a value."""
    x, p = operand(node), _number(node.attr("p", 0.5))
    kept = _kept(em, em.types[x].shape, p, em.types[x].dtype)
    y = em.op("aten.mul.Tensor", x, kept, type=em.types[x])
    mask = em.op("aten.ne.Tensor", kept, type=node.results[1].type, other=0)
    return _scaled(em, y, 1 / (1 - p) if p < 1 else 0.0, 0), mask


def _feature_dropout(em: Emitter, node: Node) -> tuple[str, ...]:
    """Whole channels: one draw for each (sample, channel)."""
    x, p = operand(node), _number(node.attr("p", 0.5))
    noise = _scaled(em, _kept(em, _channels(em, x), p, em.types[x].dtype), 1 / (1 - p) if p < 1 else 0.0, 0)
    return (em.op("aten.mul.Tensor", x, noise, type=em.types[x]),)


def _channels(em: Emitter, x: str) -> tuple[int, ...]:
    shape = em.types[x].shape
    return (*shape[:2], *(1 for _ in shape[2:]))


def _alpha_dropout(*, channels: bool) -> Rule:
    """Dropped elements become a constant, and mean and variance are kept."""

    def rule(em: Emitter, node: Node) -> tuple[str, ...]:
        x, p = operand(node), _number(node.attr("p", 0.5))
        type_ = em.types[x]
        if p == 1:
            return (em.op("aten.mul.Tensor", x, type=type_, other=0.0),)
        a = 1 / math.sqrt((_ALPHA**2 * p + 1) * (1 - p))
        kept = _kept(em, _channels(em, x) if channels else type_.shape, p, type_.dtype)
        scaled = em.op("aten.mul.Tensor", x, _scaled(em, kept, a, 0), type=type_)
        shift = _scaled(em, kept, _ALPHA * a, _ALPHA * a * (p - 1))
        return (em.op("aten.add.Tensor", scaled, shift, type=type_),)

    return rule


def _fresh(kind: str) -> Rule:
    """Numbers of the shape of the result, whatever the operands."""
    return lambda em, node: (_draw(em, kind, node.result.type),)


def _bernoulli(em: Emitter, node: Node) -> tuple[str, ...]:
    type_ = node.result.type
    p: Attr | str = node.attr("p") if node.target.endswith(".p") else operand(node)
    if not isinstance(p, str):
        return (_kept(em, type_.shape, 1 - _number(p), type_.dtype),)
    drawn = _draw(em, "uniform", TensorType("f64" if em.types[p].dtype == "f64" else "f32", type_.shape))
    less = em.op("aten.lt.Tensor", drawn, em.op(DETACH, p, type=em.types[p]), type=TensorType("bool", type_.shape))
    return (cast(em, less, type_.dtype),)


def _normal(em: Emitter, node: Node) -> tuple[str, ...]:
    """mean + std · draw, each a number or a tensor; no gradient flows to either, as in torch."""
    overload = node.target.split(".")[-1]
    names = [name for name in node.operands if isinstance(name, str)]
    tensors = iter(names if overload.startswith(("Tensor", "float_Tensor")) else [])
    found = _draw(em, "normal", node.result.type)
    mean = next(tensors) if overload.startswith("Tensor") else None
    std = next(tensors, None)
    if std is not None:
        found = em.op("aten.mul.Tensor", found, em.op(DETACH, std, type=em.types[std]), type=node.result.type)
    found = _scaled(em, found, 1.0 if std is not None else _number(node.attr("std", 1.0)), 0)
    if mean is not None:
        return (em.op("aten.add.Tensor", found, em.op(DETACH, mean, type=em.types[mean]), type=node.result.type),)
    return (_scaled(em, found, 1.0, _number(node.attr("mean", 0.0))),)


def _between(em: Emitter, node: Node) -> tuple[str, ...]:
    low, high = _number(node.attr("from", 0.0)), _number(node.attr("to", 1.0))
    return (_scaled(em, _draw(em, "uniform", node.result.type), high - low, low),)


def _exponential(em: Emitter, node: Node) -> tuple[str, ...]:
    drawn = _draw(em, "uniform", node.result.type)
    logged = em.op("aten.log.default", drawn, type=em.types[drawn])
    return (_scaled(em, logged, -1 / _number(node.attr("lambd", 1.0)), 0),)


def _randint(em: Emitter, node: Node) -> tuple[str, ...]:
    low, high = _number(node.attr("low", 0)), _number(node.attr("high"))
    type_ = node.result.type
    drawn = _draw(em, "uniform", TensorType("f64", type_.shape))
    wide = em.op("aten.mul.Tensor", drawn, type=em.types[drawn], other=high - low)
    floor = em.op("aten.floor.default", wide, type=em.types[wide])
    return (cast(em, _scaled(em, floor, 1.0, low), type_.dtype),)


RULES: dict[str, Rule] = {
    "aten.dropout.default": _dropout,
    "aten.native_dropout.default": _native_dropout,
    "aten.feature_dropout.default": _feature_dropout,
    "aten.alpha_dropout.default": _alpha_dropout(channels=False),
    "aten.feature_alpha_dropout.default": _alpha_dropout(channels=True),
    "aten.rand.default": _fresh("uniform"),
    "aten.rand_like.default": _fresh("uniform"),
    "aten.randn.default": _fresh("normal"),
    "aten.randn_like.default": _fresh("normal"),
    "aten.bernoulli.default": _bernoulli,
    "aten.bernoulli.p": _bernoulli,
    "aten.normal_functional.default": _normal,
    "aten.normal.float_float": _normal,
    "aten.normal.float_Tensor": _normal,
    "aten.normal.Tensor_float": _normal,
    "aten.normal.Tensor_Tensor": _normal,
    "aten.uniform.default": _between,
    "aten.exponential.default": _exponential,
    "aten.randint.default": _randint,
    "aten.randint.low": _randint,
    "aten.randint_like.default": _randint,
    "aten.randint_like.low_dtype": _randint,
}

"""Sharding rules: what may be split, written like an einsum.

A rule labels each dim of each operand and result with factors; dims that share a factor move together.
Grammar of one side: operands separated by commas, dims by spaces.

    f        a factor                    !f     a factor that must be whole on one device
    (a b)    a compound dim, major first 1      a dim of size one (it never shards)
    *b       any number of leading dims, aligned right to left, broadcasting where the size is 1

``instantiate`` turns the text into a ``NodeRule`` for given shapes; ops whose dims depend on attributes
derive theirs (``ir/derive.py``). Everything else follows from where a chosen factor stands:

    stands in the operand       operand S, its gradient S
    is missing from the operand operand R, its gradient Partial: each device saw a part of the work (R*)
    stands in the result        result S
    is missing from the result  result Partial
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from autopar.ir.errors import IRError

RESULT = "result"

# Factor names of one dim, major first; () for a dim of size one that takes no part.
Dim = tuple[str, ...]
ALL = "all"


@dataclass(frozen=True, kw_only=True)
class NodeRule:
    """A rule for one node's shapes.

    ``operands`` follow the node's flattened operands (absent ones included as ()).
    ``whole``: factors that no axis may own. ``partial``: sets of operand positions that may together
    be Partial(sum), making the results Partial. ``reduce``: how a contracted factor combines.
    ``exchange``: two factors, of tokens and of experts, that one axis may own together: they stand in different
    tensors, and what the axis has of the first is sent within the operation to where the second is.
    ``view``: it costs nothing.
    """

    sizes: Mapping[str, int]
    operands: tuple[tuple[Dim, ...], ...]
    results: tuple[tuple[Dim, ...], ...]
    whole: frozenset[str] = frozenset()
    partial: tuple[tuple[int, ...], ...] = ()
    reduce: str = "sum"
    contiguous: tuple[str, ...] = ()
    uneven: tuple[str, ...] = ()
    classes: bool = False
    exchange: tuple[str, str] | None = None
    view: bool = False

    def start(self, dim: Dim, factor: str) -> int:
        """Stride position of ``factor`` inside a dim that holds it."""
        return math.prod(self.sizes[f] for f in dim[: dim.index(factor)])

    def position(self, dims: tuple[Dim, ...], factor: str) -> tuple[int, int] | None:
        """(dim index, stride position) where ``factor`` stands, None if it is missing."""
        for index, dim in enumerate(dims):
            if factor in dim:
                return index, self.start(dim, factor)
        return None

    @cached_property
    def places(self) -> tuple[Mapping[str, tuple[int, int]], ...]:
        """``position`` of each factor of each operand, then of each result."""
        return tuple(
            {factor: (at, self.start(dim, factor)) for at, dim in reversed(tuple(enumerate(dims))) for factor in dim}
            for dims in (*self.operands, *self.results)
        )

    @cached_property
    def choosable(self) -> tuple[str, ...]:
        """Factors that an axis may own, in order of first appearance."""
        seen = [f for dims in (*self.operands, *self.results) for dim in dims for f in dim]
        return tuple(f for f in dict.fromkeys(seen) if f not in self.whole and self.sizes[f] > 1)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the op table.

    spec: rule text, or the name of a derivation in ``ir/derive.py``.
    partial: ``"0|1"`` either operand alone, ``"0+1"`` both together, ``""`` none.
    flops: factors whose sizes multiply (a leading number is a coefficient), forward pass.
    backward: work of the backward pass relative to the forward pass.
    saves: what autograd keeps: operand positions, ``r`` for the result, or ``ALL`` of them; ``mask`` for one byte
        an element of the result.
    crossed: an operand is kept for the gradient of another one, and only where that is wanted: products.
    work_bytes: memory traffic of the forward pass for each element of the result, beside operands and results.
    moved: numbers read and written besides, forward; inner: those of them that autograd keeps; in words as flops.
    exchanged: numbers that a device sends, and gets back as many, where an axis owns the factors of an exchange,
        forward and again backward; autograd keeps those that came. ``marks``: bytes that go along, forward, and
        stay.
    computes: element type that it works in, and keeps numbers of its own in, whatever that of its operands.
    op_class: class of the efficiency curve; ``view`` costs nothing.
    uneven: factors of classes that may be cut into padded parts (``Layout.padded``): zeros, or what this
    operation makes of them, beyond the end do no harm here, in forward or backward; ``RESULT``: all that
    stand in the result. ``classes``: those factors are what a loss or a lookup chooses from.
    """

    target: str
    spec: str
    partial: str = ""
    flops: str = ""
    backward: float = 2.0
    saves: tuple[int | str, ...] = ()
    crossed: bool = False
    work_bytes: int = 0
    moved: str = ""
    inner: str = ""
    exchanged: str = ""
    marks: str = ""
    computes: str = ""
    op_class: str = "pointwise"
    reduce: str = "sum"
    contiguous: tuple[str, ...] = ()
    uneven: tuple[str, ...] = ()
    classes: bool = False

    def keeps(self, what: int | str) -> bool:
        """Whether autograd keeps this operand, or ``r``, the result."""
        return what in self.saves or ALL in self.saves

    def keeps_operand(self, index: int, grads: Sequence[bool]) -> bool:
        """The same of an operand, where ``grads`` says which operands want a gradient."""
        others = [grad for at, grad in enumerate(grads) if at != index] if self.crossed else grads
        return self.keeps(index) and any(others)


def parse_side(text: str) -> tuple[tuple[str, ...], ...]:
    """Dim tokens of each tensor: ``"*b k, n (g h)"`` -> (("*b","k"), ("n","(g h)"))."""
    if not text.strip():
        return ((),)
    return tuple(tuple(re.findall(r"\([^)]*\)|\S+", tensor)) for tensor in text.split(","))


def instantiate(
    spec: str,
    operands: Sequence[tuple[int, ...] | None],
    results: Sequence[tuple[int, ...]],
    *,
    sizes: Mapping[str, int] | None = None,
) -> NodeRule:
    """The rule ``spec`` for shapes of the operands (None: absent) and results.

    ``sizes`` gives factors of compound dims that shapes alone do not determine. Raises IRError where a
    shape contradicts the rule.
    """
    left, right = (parse_side(side) for side in spec.split("->"))
    given = len(operands)
    operands = [*operands, *[None] * (len(left) - given)]
    reader = _Reader(dict(sizes or {}))
    ranks = [len(shape) - len(t) + 1 for t, shape in zip([*left, *right], [*operands, *results], strict=False)
             if shape is not None and any(token.startswith("*") for token in t)]  # fmt: skip
    width = max(ranks, default=0)
    for tokens, shape in zip([*left, *right], [*operands, *results], strict=False):
        if shape is not None:
            reader.measure(tokens, shape, width, spec)
    if len(results) != len(right):
        raise IRError(f"rule {spec!r} has {len(right)} results, the operation {len(results)}")
    absent = len(operands) - len(left)
    if absent > 0 and any(shape is not None for shape in operands[len(left) :]):
        raise IRError(f"rule {spec!r} is given {len(operands)} operands")
    return NodeRule(
        sizes=reader.sizes,
        operands=tuple(() if shape is None else reader.label(tokens, shape, width)
                       for tokens, shape in zip(left, operands, strict=False))[:given] + ((),) * max(absent, 0),
        results=tuple(reader.label(tokens, shape, width) for tokens, shape in zip(right, results, strict=True)),
        whole=frozenset(reader.whole),
    )  # fmt: skip


def partial_sets(text: str) -> tuple[tuple[int, ...], ...]:
    """``"0|1+2"`` -> ((0,), (1, 2))."""
    return tuple(tuple(int(i) for i in part.split("+")) for part in text.split("|")) if text else ()


def count_flops(columns: str, sizes: Mapping[str, int]) -> int:
    """What ``Row.flops`` says for factors of these sizes.

    Words multiply, ``b*`` is every factor that starts with b, ``/b`` divides by b; parts between ``+`` add up. No words
    are none.
    """
    total = 0
    for known, factors, shares in _parsed(columns, tuple(sizes)):
        product = known
        for factor in factors:
            product *= sizes[factor]
        for share in shares:
            product //= sizes[share]
        total += product
    return total


@lru_cache(maxsize=4096)
def _parsed(columns: str, names: tuple[str, ...]) -> tuple[tuple[int, tuple[str, ...], tuple[str, ...]], ...]:
    """Of each part: its numbers' product, the factors (of these ``names``) that multiply and those that divide."""
    parts = []
    for part in columns.split("+") if columns else ():
        known, factors, shares = 1, list[str](), list[str]()
        for word in part.split():
            if word.isdigit():
                known *= int(word)
            elif word.startswith("/"):
                shares.append(word[1:])
            else:
                prefix, stem = word.startswith("*") or word.endswith("*"), word.rstrip("*")
                factors += [name for name in names if name == word or (prefix and name.startswith(stem))]
        parts.append((known, tuple(factors), tuple(shares)))
    return tuple(parts)


@dataclass
class _Reader:
    """Sizes of factors, learnt from shapes."""

    sizes: dict[str, int]
    whole: set[str] = field(default_factory=set)

    def expand(self, tokens: tuple[str, ...], rank: int, width: int) -> list[str]:
        """Tokens with ``*b`` replaced by its dims: the last of ``width`` possible ones."""
        out: list[str] = []
        for token in tokens:
            if token.startswith(("*", "!*")):
                mark, name = ("!", token[2:]) if token[0] == "!" else ("", token[1:])
                count = rank - len(tokens) + 1
                out += [f"{mark}*{name}{i}" for i in range(width - count, width)]
            else:
                out.append(token)
        return out

    def measure(self, tokens: tuple[str, ...], shape: tuple[int, ...], width: int, spec: str) -> None:
        words = self.expand(tokens, len(shape), width)
        if len(words) != len(shape):
            raise IRError(f"rule {spec!r} does not fit a tensor of shape {list(shape)}")
        for word, extent in zip(words, shape, strict=True):
            names = [w.lstrip("!") for w in word.strip("()").split()]
            self.whole.update(w[1:] for w in word.strip("()").split() if w.startswith("!"))
            if names == ["1"]:
                if extent != 1:
                    raise IRError(f"rule {spec!r} has 1 where a dim is {extent}")
                continue
            unknown = [n for n in names if n not in self.sizes]
            if names[0].startswith("*"):
                self.sizes[names[0]] = max(self.sizes.get(names[0], 1), extent)
            elif len(names) == 1 and not unknown:
                if self.sizes[names[0]] != extent:
                    raise IRError(f"rule {spec!r}: factor {names[0]} is {self.sizes[names[0]]} and {extent}")
            elif len(unknown) == 1:
                self.sizes[unknown[0]] = extent // math.prod(self.sizes[n] for n in names if n in self.sizes)
            elif unknown:
                raise IRError(f"rule {spec!r}: sizes of {', '.join(unknown)} are not determined")
            have = [self.sizes[n] for n in names]
            if not names[0].startswith("*") and math.prod(have) != extent:
                raise IRError(f"rule {spec!r}: {' '.join(names)} is {have}, the dim is {extent}")

    def label(self, tokens: tuple[str, ...], shape: tuple[int, ...], width: int) -> tuple[Dim, ...]:
        dims: list[Dim] = []
        for word, extent in zip(self.expand(tokens, len(shape), width), shape, strict=True):
            names = tuple(w.lstrip("!") for w in word.strip("()").split())
            broadcast = names[0].startswith("*") and extent == 1 and self.sizes[names[0]] > 1
            dims.append(() if names == ("1",) or broadcast else names)
        return tuple(dims)

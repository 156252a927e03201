"""What stands between the two projections of an expert, as a short text that a graph can hold.

    silu            act(x): one column in, one out
    silu-glu        act(g) * u, where the first half of the columns is g and the second u
    silu-glu pairs  the same with g and u side by side: g0, u0, g1, u1, …

with, of the gated ones, ``alpha`` act(alpha * g) / alpha · ``limit`` g at most that, u within it on both sides ·
``shift`` added to u. gpt-oss has ``silu-glu pairs alpha=1.702 limit=7.0 shift=1.0``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autopar.ir.errors import IRError

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "tanh")
"""``gelu_tanh``: the approximation by tanh. ``relu2``: relu, squared."""

# Any array that is sliced, clamped and computed with as a torch.Tensor is.
Array = Any


@dataclass(frozen=True, kw_only=True)
class Columns:
    """``glu``: twice as many columns go in as come out; ``pairs``: those that make one are side by side."""

    glu: bool = False
    pairs: bool = False

    @property
    def columns(self) -> int:
        """Columns of the first projection for each that the second one reads."""
        return 2 if self.glu else 1

    def parts(self, x: Array) -> tuple[Array, Array]:
        """Views of g and u in the last dim of ``x``. Requires: a gated one."""
        return (x[..., ::2], x[..., 1::2]) if self.pairs else x.chunk(2, -1)


@dataclass(frozen=True, kw_only=True)
class Gate(Columns):
    """What the text says. Others than these are formulas (``formulas.py``)."""

    activation: str
    alpha: float = 1.0
    limit: float | None = None
    shift: float = 0.0

    def __str__(self) -> str:
        words = [f"{self.activation}-glu" if self.glu else self.activation]
        words += ["pairs"] if self.pairs else []
        words += [f"alpha={self.alpha!r}"] if self.alpha != 1 else []
        words += [] if self.limit is None else [f"limit={self.limit!r}"]
        words += [f"shift={self.shift!r}"] if self.shift else []
        return " ".join(words)

    @classmethod
    @functools.cache
    def parse(cls, text: str) -> Gate:
        """Inverse of ``str``. Raises IRError for what is no gate."""
        first, *options = text.split() or [""]
        activation, dash, kind = first.partition("-")
        given: dict[str, Any] = {"pairs": True} if options[:1] == ["pairs"] else {}
        try:
            for key, _, value in (option.partition("=") for option in options[len(given) :]):
                given[{"alpha": "alpha", "limit": "limit", "shift": "shift"}[key]] = float(value)
        except (KeyError, ValueError):
            activation = ""
        if activation not in ACTIVATIONS or (dash and kind != "glu") or (given and not dash):
            raise IRError(f"{text!r} is no gate of experts, expected one such as 'silu-glu' or 'relu'")
        return cls(activation=activation, glu=bool(dash), **given)

    def limited(self, x: Array) -> tuple[Array, Array]:
        """g and u as they are multiplied: within the limit, u shifted."""
        g, u = self.parts(x)
        if self.limit is not None:
            g, u = g.clamp(max=self.limit), u.clamp(min=-self.limit, max=self.limit)
        return g, u + self.shift if self.shift else u

    def apply(self, x: Array, activations: dict[str, Callable[[Array], Array]]) -> Array:
        """What the second projection reads. ``activations``: functions by name."""
        act = activations[self.activation]
        if not self.glu:
            return act(x)
        g, u = self.limited(x)
        return act(g) * u if self.alpha == 1 else act(self.alpha * g) / self.alpha * u

"""Experts as one reads of them: a loop over tokens and their choices, differentiated by autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x) ** 2,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class Sizes:
    tokens: int = 7
    each: int = 2
    experts: int = 4
    hidden: int = 6
    inner: int = 5


def operands(
    sizes: Sizes, *, columns: int = 2, transposed: bool = False, biased: bool = False, index: Tensor | None = None,
    seed: int = 0, marked: bool = False,
) -> list[Tensor | None]:  # fmt: skip
    """Random float64 operands of ``autopar::experts`` that want gradients, in order; ``marked``: a part is kept."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    t, k, e, h, i = sizes.tokens, sizes.each, sizes.experts, sizes.hidden, sizes.inner
    if index is None:
        index = torch.stack([torch.randperm(e, generator=generator)[:k] for _ in range(t)])
    up = draw(e, h, columns * i) if transposed else draw(e, columns * i, h)
    down = draw(e, i, h) if transposed else draw(e, h, i)
    given = [draw(t, h), index, draw(t, k), up, down, draw(e, columns * i) if biased else None]
    return [*given, torch.rand(t, i, generator=generator) < 0.7] if marked else given


def gate(text: str, z: Tensor) -> Tensor:
    """By hand, for each text that the tests use."""
    name, _, how = text.partition("-glu")
    if "-glu" not in text:
        return ACTIVATIONS[name](z)
    if "pairs" in how:
        g, u = z[..., ::2], z[..., 1::2]
    else:
        g, u = z.chunk(2, -1)
    if "limit" in how:  # gpt-oss
        g, u = g.clamp(max=7.0), u.clamp(min=-7.0, max=7.0)
    if "alpha" in how:
        return (u + 1) * (g * torch.sigmoid(g * 1.702))
    return ACTIVATIONS[name](g) * u


def experts(
    x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None,
    kept: Tensor | None = None, *, how: str, transposed: bool = False, kept_factor: float = 1.0, start: int = 0,
) -> Tensor:  # fmt: skip
    rows = []
    for token in range(x.shape[0]):
        total = torch.zeros_like(x[token])
        for choice in range(index.shape[1]):
            e = int(index[token, choice]) - start
            if not 0 <= e < up.shape[0]:
                continue
            first, second = (up[e].T, down[e].T) if transposed else (up[e], down[e])
            inner = first @ x[token] + (0 if up_bias is None else up_bias[e])
            middle = gate(how, inner)
            if kept is not None:
                middle = torch.where(kept[token], middle * kept_factor, 0.0)
            total = total + weight[token, choice] * (second @ middle)
        rows.append(total)
    return torch.stack(rows)

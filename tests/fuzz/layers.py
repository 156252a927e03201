"""Random layers of random models: each maps [b, s, d] to [b, s, d] with its own mix of operations."""

from __future__ import annotations

from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autopar.nn

ACTIVATIONS = (F.gelu, F.relu, F.silu, torch.tanh, torch.sigmoid, F.softplus, lambda x: x * x, lambda x: F.elu(x) + 1)


class Layer(nn.Module):
    """What every layer is made from: the sizes of its input, and a source of choices."""

    def __init__(self, rng: Random, seq: int, dim: int) -> None:
        super().__init__()
        self.seq, self.dim = seq, dim
        self.act = rng.choice(ACTIVATIONS)
        self.choices = [rng.random() < 0.5 for _ in range(6)]
        self.build(rng)

    def build(self, rng: Random) -> None:
        """Parameters, after the sizes are known."""

    def weight(self, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.randn(shape, dtype=torch.float64) * 0.5)

    def linear(self, inner: int, outer: int, bias: bool) -> nn.Linear:
        return nn.Linear(inner, outer, bias=bias, dtype=torch.float64)


class Mlp(Layer):
    """Two products around an activation; gated or not; biases; sometimes on flattened rows."""

    def build(self, rng: Random) -> None:
        width = rng.choice((4, 6, 7, 12, 16))
        self.up = self.linear(self.dim, width * (2 if self.choices[0] else 1), self.choices[1])
        self.down = self.linear(width, self.dim, self.choices[2])

    def forward(self, x: Tensor) -> Tensor:
        h = x.reshape(-1, self.dim) if self.choices[3] else x
        h = self.up(h)
        if self.choices[0]:
            a, b = h.chunk(2, dim=-1)
            h = self.act(a) * b
        else:
            h = self.act(h)
        result: Tensor = self.down(h)
        return result.view(x.shape)


class LowRank(Layer):
    """Products without anything between them: sums stay sums."""

    def build(self, rng: Random) -> None:
        rank = rng.choice((2, 3, 4, 8))
        self.a, self.b = self.weight(rank, self.dim), self.weight(self.dim, rank)

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(F.linear(x, self.a), self.b)
        return (h * 0.5 - x) if self.choices[0] else -h


class Attention(Layer):
    """Fused or separate projections, grouped heads, causal or masked, fused or by hand."""

    def build(self, rng: Random) -> None:
        self.heads = rng.choice((1, 2, 4, 6))
        self.groups = rng.choice([g for g in (1, 2, 3, 4) if self.heads % g == 0])
        self.size = rng.choice((2, 3, 4))
        full, kv = self.heads * self.size, self.groups * self.size
        if self.choices[0] and full == kv:
            self.qkv = self.linear(self.dim, 3 * full, self.choices[1])
        else:
            self.q, self.k, self.v = (self.linear(self.dim, n, self.choices[1]) for n in (full, kv, kv))
        self.out = self.linear(full, self.dim, self.choices[2])

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        if hasattr(self, "qkv"):
            q, k, v = self.qkv(x).split(self.heads * self.size, dim=-1)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        q = q.view(batch, seq, self.heads, self.size).transpose(1, 2)
        k, v = (t.view(batch, seq, self.groups, self.size).transpose(1, 2) for t in (k, v))
        if self.choices[3]:
            times = self.heads // self.groups
            k, v = (t.repeat_interleave(times, dim=1) for t in (k, v))
            scores = q @ k.transpose(-1, -2) / self.size**0.5
            if self.choices[4]:
                future = torch.ones(seq, seq, dtype=torch.bool).triu(1)
                scores = scores.masked_fill(future, -1e9)
            h = scores.softmax(-1) @ v
        else:
            h = F.scaled_dot_product_attention(q, k, v, is_causal=self.choices[4], enable_gqa=True)
        result: Tensor = self.out(h.transpose(1, 2).reshape(batch, seq, -1))
        return result


class Norm(Layer):
    """Layer norm, RMS norm by hand, or a softmax."""

    def build(self, rng: Random) -> None:
        self.kind = rng.choice(("layer", "rms", "softmax", "standard"))
        self.w, self.b = self.weight(self.dim), self.weight(self.dim)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "layer":
            return F.layer_norm(x, (self.dim,), self.w, self.b)
        if self.kind == "rms":
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3) * self.w + self.b
        if self.kind == "standard":
            return (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1.0).sqrt() * self.w
        return x.softmax(-1) * self.w + x.log_softmax(1 if self.choices[0] else 2) * self.b


class Mix(Layer):
    """Work along the sequence: products, shifts, sums."""

    def build(self, rng: Random) -> None:
        self.kind = rng.choice(("product", "shift", "cumsum", "pool", "select", "turn"))
        self.w, self.v = self.weight(self.seq, self.seq), self.weight(self.dim)
        self.order = rng.sample(range(self.seq), self.seq)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "product":
            return torch.einsum("bsd,ts->btd", x, self.w) * self.v
        if self.kind == "shift":
            return F.pad(x, (0, 0, 1, 0))[:, :-1] * self.v + x
        if self.kind == "cumsum":
            return x.cumsum(1) * self.v / self.seq
        if self.kind == "pool":
            pooled = x.amax(1, keepdim=True) if self.choices[0] else x.sum(dim=1, keepdim=True)
            return x * torch.sigmoid(pooled * self.v) if self.choices[1] else pooled.expand(-1, self.seq, -1) * self.v
        if self.kind == "select":
            return x.index_select(1, torch.tensor(self.order)) * self.v
        return F.linear(x.transpose(1, 2), self.w).transpose(1, 2).contiguous() + self.v


class Heads(Layer):
    """Views into heads, a product for each, and back."""

    def build(self, rng: Random) -> None:
        self.heads = rng.choice([h for h in (1, 2, 3, 4) if self.dim % h == 0])
        size = self.dim // self.heads
        self.w, self.v = self.weight(self.heads, size, size), self.weight(self.heads, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        h = x.view(batch, seq, self.heads, -1)
        if self.choices[0]:
            h = (h.transpose(1, 2) @ self.w).transpose(1, 2)
        h = self.act(h) if self.choices[1] else h * self.v
        return h.reshape(batch, seq, -1) if self.choices[2] else h.flatten(2) * 2.0


class Pieces(Layer):
    """Split, work on a piece, put together again; a piece may go into another's place."""

    def build(self, rng: Random) -> None:
        self.cut = rng.choice([c for c in (self.dim // 2, 1, self.dim // 4) if 0 < c < self.dim])
        self.w = self.weight(self.cut)
        self.dims = rng.choice((1, 2)) if self.seq % 2 == 0 else 2

    def forward(self, x: Tensor) -> Tensor:
        a, b = x[..., : self.cut], x[..., self.cut :]
        h = torch.cat((b, self.act(a) * self.w), dim=-1) if self.choices[0] else torch.cat((a * self.w, b), dim=-1)
        if self.choices[1] and x.shape[self.dims] % 2 == 0:
            first, second = h.chunk(2, dim=self.dims)
            h = torch.cat((-second, first), dim=self.dims)
        return h


class Choose(Layer):
    """Masks, comparisons and broadcasting."""

    def build(self, rng: Random) -> None:
        self.w = self.weight(self.seq, 1) if self.choices[0] else self.weight(self.dim)
        self.kind = rng.choice(("where", "fill", "clamp", "maximum", "scalar"))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "where":
            return torch.where(x > 0, x * self.w, self.w - x)
        if self.kind == "fill":
            return (x * self.w).masked_fill(x < -0.5, 0.25)
        if self.kind == "clamp":
            return x.clamp(-1.0, 1.0) * self.w + x.detach()
        if self.kind == "maximum":
            return torch.maximum(x, self.w.expand_as(x)) - torch.minimum(x, -self.w)
        return x * self.w.sum() + (x.mean() * self.w if self.choices[1] else self.w.square().mean())


class Batch(Layer):
    """Couples the samples: a batch statistic."""

    def build(self, rng: Random) -> None:
        self.w = self.weight(self.dim)

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True) * self.w if self.choices[0] else x * (x.square().sum((0, 1)) + 1).rsqrt()


class Experts(Layer):
    """A mixture of experts with any router: few experts, some of them empty. Returns its auxiliary loss besides."""

    def build(self, rng: Random) -> None:
        prototypes = rng.choice((1, 1, 2))
        experts = prototypes * rng.choice((2, 3, 4, 6))
        top_k = rng.choice([k for k in (1, 1, 2, 3) if k <= experts // prototypes])
        self.moe = autopar.nn.MoE(
            self.dim, rng.choice((4, 6, 8)), experts, prototypes=prototypes, top_k=top_k,
            activation=rng.choice(("silu-glu", "gelu", "relu")), gate=rng.choice(("softmax", "sigmoid")),
            normalize=self.choices[0] and top_k > 1, capacity_factor=rng.choice((None, None, 0.5, 1.0)),
            balance_loss=rng.choice((0.0, 0.1)), z_loss=rng.choice((0.0, 0.1)), dtype=torch.float64,
        )  # fmt: skip
        with torch.no_grad():
            for weight in self.moe.router.parameters():
                weight.mul_(3.0)  # choices far from even

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = self.moe(x)
        return made.hidden, made.loss


LAYERS: tuple[type[Layer], ...] = (Mlp, Mlp, LowRank, Attention, Attention, Norm, Norm, Mix, Heads, Pieces, Choose)
COUPLING: tuple[type[Layer], ...] = (Batch,)
MIXTURES: tuple[type[Layer], ...] = (Experts, Experts, Experts, Mlp, Attention, Norm)

"""Auxiliary losses of a router, one number for each sequence."""

from __future__ import annotations

from torch import Tensor


def balance_loss(gates: Tensor, load: Tensor, choices: int) -> Tensor:
    """E · Σ f P of each sequence (Switch, 2022; by sequence as in DeepSeek-V2, 2024): [batch].

    f is an expert's share of the sequence's choices, dropped ones included; P the mean of its gate over the tokens,
    where the gates of a token are scaled to a sum of 1. Even routing gives 1. Gradients flow through P alone.
    ``gates`` [batch, length, prototypes, experts], ``load`` [batch, prototypes, experts]; ``choices``: of a sequence.
    """
    prototypes, experts = load.shape[1:]
    shares = gates / gates.sum((-2, -1), keepdim=True)
    return prototypes * experts * (load * shares.mean(1)).sum((1, 2)) / choices


def z_loss(logits: Tensor) -> Tensor:
    """The mean over tokens, and over prototypes, of log²(Σ exp(logits)) (ST-MoE, 2022): [batch].

    ``logits`` [batch, length, prototypes, experts].
    """
    return logits.logsumexp(-1).square().mean((1, 2))

"""What a process does on the machine's one GPU with NCCL, and plain torch beside it there."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import autopar
from autopar.runtime.parity import compare
from tests.families import FAMILIES, Family
from tests.families.family import causal_batch, settled
from tests.families.measure import PROFILE, alone
from tests.families.plain import Mixture
from tests.families.ranks import stepped
from tests.models import llama

GPU = torch.device("cuda", 0)
CLUSTER = "1x1xCPU"  # not every GPU has a rate of float64 in the profile
# bf16 has 8 bits: how far it may be from float64, as a multiple of how far plain torch in bf16 is
OF_PLAIN = 2.0


def there(given: Any) -> Any:
    """The same on the GPU."""
    if isinstance(given, Mapping):
        return {name: there(value) for name, value in given.items()}
    return given.to(GPU) if isinstance(given, Tensor) else given


def own(dtype: torch.dtype = torch.float64) -> Family:
    """A model with our own layer, whose widths ``grouped_mm`` takes."""
    return Family(name="own", build=lambda: settled(Mixture(8, top_k=2, normalize=True)).to(dtype), batch=causal_batch)


def trained(name: str, options: Mapping[str, Any]) -> float:
    """Three steps in float64 under NCCL, against plain torch on the same GPU: the largest error."""
    dist.destroy_process_group()  # of the harness
    family = FAMILIES[name]
    torch.manual_seed(0)
    model, batch = family.build(), family.batch()
    expected = alone(copy.deepcopy(model).to(GPU), there(batch), family)
    parallel = autopar.parallelize(
        model, batch, cluster=CLUSTER, profile=PROFILE, loss_fn=family.loss_fn, **options
    )
    losses, gradients, _ = stepped(parallel, batch, 1e9)
    assert str(dist.get_backend()) == "nccl"
    assert {p.device for p in parallel.parameters()} == {GPU}
    state = parallel.full_state_dict()
    worst = 0.0
    pairs = {"losses": (losses, expected.losses), "gradients": (gradients, expected.gradients),
             "parameters": (dict(state), expected.parameters)}  # fmt: skip
    for what, pair in pairs.items():
        worst = max(worst, compare(*pair, tol=family.tolerance, what=what))
    return worst


def in_bf16(kind: str, options: Mapping[str, Any]) -> dict[str, float]:
    """How far losses and gradients in bf16 are from float64: ours as a multiple of plain torch's in bf16."""
    dist.destroy_process_group()
    torch.manual_seed(0)
    model = own().build() if kind == "own" else llama(hidden_size=64)
    batch = causal_batch()
    family = Family(name=kind, build=lambda: model, batch=causal_batch)
    exact = alone(copy.deepcopy(model).to(GPU), there(batch), family)
    plain = alone(copy.deepcopy(model).to(GPU, torch.bfloat16), there(batch), family)
    given = model.float() if "mixed_precision" in options else model.bfloat16()
    parallel = autopar.parallelize(given, batch, profile=PROFILE, **options)
    losses, gradients, _ = stepped(parallel, batch, 1e9)
    return {
        "losses": _off(losses, exact.losses) / _off(plain.losses, exact.losses),
        "gradients": _off(gradients, exact.gradients) / _off(plain.gradients, exact.gradients),
    }


def _off(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> float:
    """Root of the mean square of all differences, over that of all numbers."""
    differences = sum(float((found[n].to(GPU).double() - e.double()).square().sum()) for n, e in exact.items())
    return float((differences / sum(float(e.double().square().sum()) for e in exact.values())) ** 0.5)


def same_words(name: str) -> tuple[list[float], list[float]]:
    """Losses of three steps with dropout, twice from the same seed: the GPU draws what it drew."""
    dist.destroy_process_group()
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        family = FAMILIES[name]
        model: nn.Module = family.build()
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.5
        parallel = autopar.parallelize(model, family.batch(), cluster=CLUSTER, profile=PROFILE)
        losses, _, _ = stepped(parallel, family.batch(), 1e9)
        found.append([float(loss) for loss in losses.values()])
    return found[0], found[1]


def profiled() -> dict[str, float]:
    """Planned and measured figures of a model with some work to do."""
    dist.destroy_process_group()
    model = llama(4, hidden_size=512, num_attention_heads=8, num_key_value_heads=8, intermediate_size=1536,
                  vocab_size=8192, max_position_embeddings=512).bfloat16()  # fmt: skip
    ids = torch.randint(0, 8192, (8, 512))
    batch = {"input_ids": ids, "labels": ids}
    parallel = autopar.parallelize(model, batch, num_microbatches=1, recompute="none")
    found = parallel.profile(3, **parallel.shard_inputs(batch))
    assert found.planned is not None
    return {
        "step_s": found.measured.step_s, "compute_s": found.measured.compute_s,
        "peak": found.measured.peak_bytes, "planned peak": found.planned.peak_bytes,
    }  # fmt: skip

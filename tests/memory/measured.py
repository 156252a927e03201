"""A small model trained on this process: its peak of live bytes beside what its plan says."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import autopar
from tests.harness import run_processes
from tests.memory.live import Live
from tests.models import exact_loss
from tests.on_mesh import OnMesh
from tests.parity.processes import NETWORKS

BATCH, SEQ, VOCAB = 16, 128, 512


@dataclass(frozen=True, kw_only=True)
class Case(OnMesh):
    model: str

    def __str__(self) -> str:
        return " ".join(self.words(self.model))


def llama(layers: int = 4) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=256, intermediate_size=704, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=SEQ, use_cache=False,
    ))  # fmt: skip


def gpt2(layers: int = 4) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(
        n_layer=layers, n_embd=256, n_head=8, vocab_size=VOCAB, n_positions=SEQ, use_cache=False, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    ))  # fmt: skip


def mixtral(layers: int = 4) -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(
        vocab_size=VOCAB, hidden_size=256, intermediate_size=352, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=4, num_local_experts=4, max_position_embeddings=SEQ, use_cache=False,
    ))  # fmt: skip


BUILDERS = {"llama": llama, "gpt2": gpt2, "mixtral": mixtral}


def batch() -> dict[str, Tensor]:
    ids = torch.randint(0, VOCAB, (BATCH, SEQ), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids.clone()}


def measure(case: Case) -> dict[str, Any]:
    """The second step of training: gradients are gone, the optimizer's state is there."""
    torch.manual_seed(0)
    live = Live()
    model: Any = BUILDERS[case.model]()
    if "mixed_precision" not in case.options:  # where the loss is a half, the model's own casts the logits
        model.loss_function = exact_loss
    with live:
        made = autopar.parallelize(
            model, batch(), mesh=case.mesh, profile=str(NETWORKS / "fair.toml"), **case.options
        )
        del model
        optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3, foreach=False)
        given = made.shard_inputs(batch())
        for index in range(2):
            if index == 1:
                gc.collect()
                live.reset()
            made.train_step(**given)
            optimizer.step()
            optimizer.zero_grad()
    place = made._here.device_mesh.get_local_rank("pp") if "pp" in case.mesh else 0
    return {
        "measured": live.peak_bytes, "by operation": live.at_peak,
        "planned": made.plan.memory.peak_bytes[place], "parts": dict(made.plan.memory.parts),
        "zero": dict(made.plan.zero), "recompute": dict(made.plan.recompute),
        "hsdp": dict(made.plan.hsdp),
    }  # fmt: skip


def measured_on(case: Case) -> list[dict[str, Any]]:
    """Reports of one rank of each place on the pipeline axis."""
    return run_processes(case.world_size, measure, case, timeout_s=280)[:: case.world_size // case.mesh["pp"]]

"""A plan as the search would make it, for tests of what the command line does with plans."""

from __future__ import annotations

from typing import Any

from autopar.cost_model import Cluster
from autopar.ir.plan import Plan

LAYER = "model.layers.*"


def example_plan(**changed: Any) -> Plan:
    """Two blocks of a transformer on two nodes, with every part of a plan in use."""
    cluster = Cluster.parse(changed.pop("on", "2x4xH100-SXM"))
    data: dict[str, Any] = {
        "model": "zoo:llama3-8b",
        "cluster": cluster.to_dict(),
        "world_size": cluster.world_size,
        "objective_s": 0.412,
        "lower_bound_s": 0.41,
        "gap": 0.0048543689,
        "proven_optimal": False,
        "status": "time limit",
        "mesh": {"dp": 2, "tp": 4},
        "axes": ["dp", "tp"],
        "num_microbatches": 4,
        "optimizer": "adamw",
        "mixed_precision": "bf16",
        "zero": {"": 0, "layer": 3},
        "recompute": {"layer": "full"},
        "step_time_s": {"compute": 0.33, "exposed_comm": 0.08, "bubble": 0.002},
        "memory": {
            "budget_bytes": 81_240_000_000,
            "peak_bytes": [71_300_000_000],
            "parts": {
                "parameters": 16_000_000_000,
                "optimizer_state": 48_000_000_000,
                "activations": 7_300_000_000,
            },
        },
        "blocks": [{"name": "layer", "count": 32, "nodes": 61}],
        "graph": {"nodes": 2021, "folded_nodes": 87},
        "placements": {
            "lm_head.weight": {"dp": "R", "tp": "S(0)"},
            f"{LAYER}.self_attn.q_proj.weight": {"dp": "R", "tp": "S(0)"},
            f"{LAYER}.input_layernorm.weight": {"dp": "R", "tp": "R"},
        },
        "storage": {
            "lm_head.weight": {"dp": "R", "tp": "S(0)"},
            f"{LAYER}.self_attn.q_proj.weight": {"dp": "S(0)", "tp": "S(0)"},
            f"{LAYER}.input_layernorm.weight": {"dp": "R", "tp": "R"},
        },
        "islands": [{"op": "aten.sort.default", "count": 2, "flops_share": 0.01}],
        "collectives": [
            collective("all_reduce", "tp", 67_108_864, 128, f"{LAYER}.self_attn.o_proj", "forward"),
            collective("reduce_scatter", "dp", 436_207_616, 32, LAYER, "grad"),
        ],
        "profile": {
            "name": "builtin",
            "sha256": "a3" * 32,
            "priced": {"matmul": ["measured_rate"], "softmax": ["peak"], "embedding": ["bytes_only"]},
        },
        "fingerprint": {
            "graph_sha256": "00" * 32,
            "parameters": {"lm_head.weight": "f32[128256,4096]"},
            "inputs": {"input_ids": "i64[64,8192]", "labels": "i64[64,8192]"},
        },
        "assignment": {"variants": [], "main": 0, "calls": {}},
    }  # fmt: skip
    return Plan.model_validate(data | changed, strict=False)


def collective(kind: str, axis: str, size_bytes: int, count: int, where: str, phase: str) -> dict[str, Any]:
    """One entry of a plan's collectives."""
    return {"kind": kind, "axis": axis, "bytes": size_bytes, "count": count, "where": where, "phase": phase}

"""Configurations whose memory is measured: on two processes, activations as large as parameters or larger."""

from __future__ import annotations

from tests.memory.measured import Case

DP, TP, EP = {"dp": 2}, {"tp": 2}, {"ep": 2}
CASES = [
    Case(model="llama", mesh=DP, options={"zero": 0, "recompute": "none", "num_microbatches": 1}),
    Case(model="llama", mesh=DP, options={"zero": 0, "recompute": "none", "num_microbatches": 4}),
    Case(model="llama", mesh=DP, options={"zero": 1, "recompute": "selective", "num_microbatches": 4}),
    Case(model="llama", mesh=DP, options={"zero": 2, "recompute": "full", "num_microbatches": 4}),
    Case(model="llama", mesh=DP, options={"zero": 3, "recompute": "none", "num_microbatches": 4}),
    Case(model="llama", mesh=DP, options={"zero": 3, "recompute": "selective", "num_microbatches": 1}),
    Case(model="llama", mesh=TP, options={"recompute": "none", "num_microbatches": 4}),
    Case(model="llama", mesh=TP, options={"recompute": "selective", "num_microbatches": 1}),
    Case(model="llama", mesh=DP, options={
        "zero": 2, "recompute": "selective", "num_microbatches": 4, "mixed_precision": "bf16",
    }),
    Case(model="gpt2", mesh=DP, options={"zero": 1, "recompute": "none", "num_microbatches": 4}),
    Case(model="gpt2", mesh=DP, options={"zero": 2, "recompute": "selective", "num_microbatches": 1}),
    Case(model="gpt2", mesh=DP, options={"zero": 3, "recompute": "full", "num_microbatches": 1}),
    Case(model="gpt2", mesh=TP, options={"recompute": "none", "num_microbatches": 1}),
    Case(model="gpt2", mesh=DP, options={
        "zero": 3, "recompute": "none", "num_microbatches": 2, "mixed_precision": "bf16",
    }),
    Case(model="mixtral", mesh=DP, options={"zero": 1, "recompute": "none", "num_microbatches": 1}),
    Case(model="mixtral", mesh=DP, options={"zero": 1, "recompute": "selective", "num_microbatches": 1}),
    Case(model="mixtral", mesh=EP, options={"zero": 3, "recompute": "full", "num_microbatches": 2}),
]  # fmt: skip

PP, BOTH = {"pp": 2}, {"pp": 2, "dp": 2}
PIPELINES = [
    Case(model="llama", mesh=PP, options={"recompute": "none", "num_microbatches": 4}),
    Case(model="llama", mesh=PP, options={"recompute": "full", "num_microbatches": 4}),
    Case(model="llama", mesh=PP, options={"recompute": "none", "num_microbatches": 4, "schedule": "gpipe"}),
    Case(model="llama", mesh=PP, options={"recompute": "full", "num_microbatches": 16}),
    Case(model="llama", mesh={"pp": 4}, options={"recompute": "full", "num_microbatches": 16}),
    Case(model="llama", mesh=BOTH, options={"zero": 0, "recompute": "none", "num_microbatches": 4}),
    Case(model="llama", mesh=BOTH, options={"zero": 1, "recompute": "selective", "num_microbatches": 4}),
    Case(model="llama", mesh=BOTH, options={"zero": 3, "recompute": "none", "num_microbatches": 4}),
]

# Two nodes with a slow network between them: parameters are cut among the devices of one (HSDP).
NODES, DP4 = {"cluster": "2x2xCPU@10Gb/s"}, {"dp": 4}
HYBRID = [
    Case(model="llama", mesh=DP4, options={**NODES, "zero": 2, "recompute": "selective", "num_microbatches": 4}),
    Case(model="llama", mesh=DP4, options={**NODES, "zero": 3, "recompute": "none", "num_microbatches": 4}),
    Case(model="gpt2", mesh=DP4, options={**NODES, "zero": 3, "recompute": "full", "num_microbatches": 1}),
    Case(model="llama", mesh=DP4, options={
        **NODES, "zero": 3, "recompute": "selective", "num_microbatches": 4, "mixed_precision": "bf16",
    }),
]  # fmt: skip

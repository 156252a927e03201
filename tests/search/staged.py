"""Small pipelines of large models, in several numbers of microbatches."""

from __future__ import annotations

from autopar.arguments import check
from autopar.compiling import ready
from autopar.ir.mesh import Mesh
from autopar.models import resolve
from autopar.passes.bounds import Bounds
from autopar.passes.outer import Candidate, of_mesh
from autopar.passes.positions import positions

COUNTS = (4, 8, 16, 32)
CASES = {
    "llama3-8b": ({"pp": 4, "tp": 2}, "2x4xV100-SXM2-32GB"),
    "mixtral-8x7b": ({"pp": 4, "ep": 2}, "2x4xH100-SXM"),
    "deepseek-v3": ({"pp": 4, "ep": 2, "tp": 2}, "2x8xH100-SXM"),
}


def pipelines(name: str, schedule: str) -> tuple[Bounds, list[Candidate]]:
    """Of the mesh of a case, the fewest microbatches first; memory is no matter until it is set."""
    axes, cluster = CASES[name]
    made = resolve(f"zoo:{name}", batch_size=64, seq_len=256, layers=8)
    arguments = check(cluster=cluster, name=name, mixed_precision="bf16" if "H100" in cluster else "fp16")
    model = ready(made.model, made.example_inputs, arguments).model
    marks = positions(model.graph, model.rules, model.settings.inputs)
    bounds = Bounds(
        model=model, cluster=arguments.cluster, profile=arguments.profile, positions=marks, memory_bytes=1 << 60
    )
    return bounds, [*of_mesh(Mesh(tuple(axes.items())), COUNTS, schedule)]

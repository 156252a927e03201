"""``autopar plan MODEL``: search, print, save."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from autopar.cli import options
from autopar.cli.output import check_writable, note, print_json, progress, write_atomic
from autopar.cli.parse import parse_constraints, parse_mesh, parse_time_limit_s

if TYPE_CHECKING:
    from autopar.ir.plan import Plan


def plan(
    model: options.Model,
    cluster: options.ClusterSpec = None,
    profile: options.ProfileSpec = None,
    batch_size: options.BatchSize = None,
    seq_len: options.SeqLen = None,
    layers: options.Layers = None,
    mesh: options.MeshSpec = None,
    memory_budget: options.MemoryBudget = None,
    constraint: options.Constraints = None,
    optimizer: options.Optimizer = "adamw",
    mixed_precision: options.MixedPrecision = None,
    num_microbatches: options.NumMicrobatches = None,
    schedule: options.Schedule = None,
    zero: options.Zero = None,
    recompute: options.RecomputeMode = None,
    like: options.LikeRecipe = None,
    rng: options.Rng = "exact",
    time_limit: options.TimeLimit = "60s",
    output: options.Output = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Find the fastest way to train MODEL on a cluster, and prove how close to the best it is.

    Needs no GPU and no weights: the model is built without memory.
    """
    from autopar.cli.machine import cluster_or_this_machine
    from autopar.cost_model import load_profile, parse_bytes

    arguments: dict[str, Any] = {
        "mesh": None if mesh is None else parse_mesh(mesh),
        "memory_budget": None if memory_budget is None else parse_bytes(memory_budget),
        "optimizer": optimizer,
        "mixed_precision": None if mixed_precision is None else mixed_precision.value,
        "num_microbatches": num_microbatches,
        "schedule": schedule,
        "zero": zero,
        "recompute": None if recompute is None else recompute.value,
        "like": None if like is None else like.value,
        "rng": rng,
        "time_limit": parse_time_limit_s(time_limit),
    }
    arguments["constraints"] = parse_constraints(constraint or ())
    arguments["sizes"] = {
        name: size for name, size in (("batch_size", batch_size), ("seq_len", seq_len), ("layers", layers)) if size
    }
    arguments["profile"] = load_profile(profile)
    arguments["cluster"] = cluster_or_this_machine(cluster, arguments["profile"])
    if output is not None:
        check_writable(output)

    with _without_collection():
        with progress("loading torch"):
            from autopar import api
            from autopar.models import resolve
        with progress(f"building {model}"):
            found = resolve(model, batch_size=batch_size, seq_len=seq_len, layers=layers)
        with progress(f"searching a plan for {model} on {arguments['cluster']}") as say:
            made = api.plan(found.model, found.example_inputs, name=found.name, progress=say, recipes=True, **arguments)
    if output is not None:
        write_atomic(output, made.to_bytes())
        note(f"saved {output}")
    _print(made, as_json=as_json)


@contextmanager
def _without_collection() -> Iterator[None]:
    """A trace makes millions of objects that live to its end: looking for garbage there takes a sixth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _print(made: Plan, *, as_json: bool) -> None:
    if as_json:
        print_json(made.document() | {"search": made.search or {}})
        return
    from autopar.cli.plan_view import show_plan

    show_plan(made)
    if made.search and "total_s" in made.search:
        parts = {"trace_s": "tracing", "fold_s": "folding", "solve_s": "solving", "lower_s": "lowering"}
        split = ", ".join(
            f"{text} {made.search[key]:.2f}" for key, text in parts.items() if key in made.search
        )
        recipes = f"; standard recipes worked out in {made.search['recipes_s']:.2f} s" if made.recipes else ""
        note(f"found in {made.search['total_s']:.2f} s ({split}){recipes}")

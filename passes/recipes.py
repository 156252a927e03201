"""Standard recipes: the plans that practitioners try first, as limits of a search.

A recipe says the mesh, the ZeRO level and the schedule:

| recipe | pp | tp | dp | ZeRO | schedule |
|---|---|---|---|---|---|
| ``data_parallel`` | 1 | 1 | all devices | 0 | |
| ``zero3`` | 1 | 1 | all devices | 3, cut over all of them | |
| ``megatron`` | 1 | as many of a node's devices as divide heads and hidden sizes | the rest | 1 | |
| ``gpipe`` | any that cuts the layers into equal stages | 1 | the rest | 0 | GPipe |
| ``hybrid_3d`` | any | any that ``megatron`` may have | the rest | 1 | 1F1B |

ZeRO 1 is Megatron's distributed optimizer. What a recipe leaves open is the search's: the best sizes where there are
several, microbatches, recomputation as far as memory asks for it, and placements. Megatron's columns and rows are among
the placements of its mesh. So a recipe takes no longer than where it is set up by hand, but for what a quick search
(``Limits.quick``) misses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from autopar.cost_model import Cluster
from autopar.ir.errors import InfeasibleError, UsageError
from autopar.ir.mesh import Mesh
from autopar.ir.pipeline import PIPELINE_AXIS
from autopar.ir.recompute import is_expensive
from autopar.passes.build import Model
from autopar.passes.candidates import divisors, fitting, microbatch_counts
from autopar.passes.extents import extents, layers
from autopar.passes.found import Limits
from autopar.passes.outer import Candidate, admitted, of_mesh, outer_candidates, with_shares
from autopar.passes.positions import Positions, node_key

TENSOR_AXIS = "tp"


@dataclass(frozen=True, kw_only=True)
class World:
    """What the sizes of a recipe's axes follow from.

    ``node``: devices of each node. ``splits``: sizes of tp inside a node that divide the layers' work, 1 first.
    """

    devices: int
    node: int
    layers: int
    splits: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """``sizes``: (pp, tp) of each mesh, of which dp is the rest; raises UsageError with the reason if there is none.

    ``schedule``: of meshes with a pipeline. ``equal``: whether its stages have equal numbers of layers.
    """

    zero: int
    sizes: Callable[[World], Iterable[tuple[int, int]]]
    schedule: str = "1f1b"
    equal: bool = False


def _whole(_: World) -> list[tuple[int, int]]:
    return [(1, 1)]


def _inside_nodes(world: World) -> list[tuple[int, int]]:
    if world.node > 1 and world.splits == (1,):
        raise UsageError(
            f"no size of tp up to the {world.node} devices of a node divides heads and hidden sizes of every layer"
        )
    return [(1, world.splits[-1])]


def _equal_stages(world: World) -> list[tuple[int, int]]:
    sizes = [size for size in divisors(world.devices) if 1 < size <= world.layers and world.layers % size == 0]
    if not sizes:
        raise UsageError(
            f"{world.layers} repeated layers cannot be cut into equal stages for {world.devices} device(s)"
        )
    return [(size, 1) for size in sizes]


def _three_axes(world: World) -> list[tuple[int, int]]:
    return [
        (places, split) for split in world.splits for places in divisors(world.devices // split)
        if places <= max(world.layers, 1)
    ]  # fmt: skip


RECIPES = {
    "data_parallel": Recipe(zero=0, sizes=_whole),
    "zero3": Recipe(zero=3, sizes=_whole),
    "megatron": Recipe(zero=1, sizes=_inside_nodes),
    "gpipe": Recipe(zero=0, sizes=_equal_stages, schedule="gpipe", equal=True),
    "hybrid_3d": Recipe(zero=1, sizes=_three_axes),
}


def asked(model: Model, cluster: Cluster, limits: Limits, found: Positions) -> tuple[Model, list[Candidate]]:
    """The model and the outer choices of a search: all that its limits leave, or those of a recipe.

    Raises UsageError where ``limits.mesh`` fits nothing, InfeasibleError where the recipe cannot be placed at all or a
    constraint leaves no choice.
    """
    constraints = model.settings.constraints
    if limits.like is None:
        even = outer_candidates(limits, cluster.world_size, *extents(model), layers(model), experts(model), cluster)
        # from level 2 on ranks meet every microbatch, and cannot run unequal numbers of them
        shared = [] if (model.settings.zero or 0) > 1 else with_shares(even, len(cluster.devices))
        return model, admitted([*even, *shared], constraints)
    recipe = RECIPES[limits.like]
    node = math.gcd(*cluster.node_sizes())
    world = World(devices=cluster.world_size, node=node, layers=layers(model), splits=tuple(splits(model, found, node)))
    try:
        candidates = _candidates(recipe, world, limits, *extents(model))
    except UsageError as error:
        told = f"the recipe {limits.like} cannot be placed: {error}"
        raise InfeasibleError(told, details={"why": str(error)}) from None
    made = replace(model, settings=replace(model.settings, zero=recipe.zero, hybrid=False))
    return made, admitted(candidates, constraints)


def _candidates(
    recipe: Recipe, world: World, limits: Limits, batch: int | None, sequence: int | None
) -> list[Candidate]:
    """Raises UsageError with the first reason if there is none."""
    meshes = [_mesh(places, world.devices // (places * split), split) for places, split in recipe.sizes(world)]
    found: list[Candidate] = []
    for strict in (False, True):
        for mesh in fitting(meshes, batch, sequence, limits.microbatches):
            counts = microbatch_counts(batch or 1, mesh.size("dp"))
            counts = counts if limits.microbatches is None else (limits.microbatches,)
            made = of_mesh(mesh, counts, recipe.schedule, strict=strict, equal=recipe.equal)
            found += [replace(candidate, fewest=candidate.count) for candidate in made]
        if found:
            break
    return found


def _mesh(places: int, data: int, split: int) -> Mesh:
    inner = tuple((axis, size) for axis, size in (("dp", data), (TENSOR_AXIS, split)) if size > 1) or (("dp", 1),)
    return Mesh(((PIPELINE_AXIS, places), *inner) if places > 1 else inner)


def experts(model: Model) -> int:
    """What the numbers of experts of all layers have in common; 1 where there are none."""
    found = [rule.sizes[rule.exchange[1]] for rule in model.rules.values() if rule.exchange is not None]
    return math.gcd(*found) or 1


def splits(model: Model, found: Positions, most: int) -> Iterator[int]:
    """Divisors of ``most`` by which tp divides each product and attention of the layers: heads, hidden sizes."""
    for size in divisors(most):
        if size == 1 or all(_splits(model, found, key, size) for key in _products(model)):
            yield size


def _products(model: Model) -> Iterator[tuple[str, str]]:
    """Products, convolutions and attention of repeated layers, of the whole model where nothing repeats."""
    for part in model.graph.blocks or (model.graph,):
        for node in part.nodes:
            if is_expensive(node) and not model.facts[node_key(part, node)].pure:
                yield node_key(part, node)


def _splits(model: Model, found: Positions, key: tuple[str, str], size: int) -> bool:
    """Whether tp may have a factor of the node that is neither batch nor sequence."""
    rule = model.rules[key]
    return any(
        found.offered(key, factor, rule.sizes[factor], TENSOR_AXIS, size)
        and not any(label in ("batch", "sequence") for label, _, _ in found.factors[key].get(factor, ()))
        for factor in rule.choosable
    )

"""What is refused before anything is stored, and how a model on meta gets its tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from autopar.ir.errors import UnsupportedError
from autopar.ir.layout import Layout, Shard
from autopar.ir.mesh import Mesh
from autopar.ir.program import Parameter
from autopar.ir.types import TensorType
from autopar.runtime.devices import here
from autopar.runtime.parameters import Whole, initialised, names_of, store
from tests.harness import run_processes

MESH = Mesh((("tp", 2),))


def parameter(layout: Layout, shape: tuple[int, ...] = (12, 4), **changes: Any) -> Parameter:
    return Parameter(fqn="w", type=TensorType("f32", shape), compute_dtype="f32", layout=layout, **changes)


def ones(shape: tuple[int, ...]) -> Whole:
    return lambda name: torch.ones(shape)


def stored() -> dict[str, Any]:
    place = here(MESH, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)))
    rows = parameter(Layout.of(MESH, {"tp": Shard(0)}))

    def init(name: str, tensor: Tensor) -> None:
        tensor.copy_(torch.arange(48.0).view(12, 4))

    part = store(rows, initialised({"w": rows}, init), place)
    assert isinstance(part, nn.Parameter) and isinstance(part.data, DTensor)
    buffer = store(parameter(Layout.replicated(MESH), buffer=True), lambda name: torch.ones(12, 4), place)
    errors = []
    for bad, shape in ((Layout.of(MESH, {"tp": Shard(0, 3)}), (12, 4)), (Layout.replicated(MESH), (3, 4))):
        with pytest.raises(UnsupportedError) as error:
            store(parameter(bad), ones(shape), place)
        errors.append(str(error.value))
    return {
        "local": part.data.to_local().shape,
        "whole": part.data.full_tensor(),
        "owned": part.data.to_local().untyped_storage().nbytes(),
        "buffer": type(buffer) is Tensor,
        "errors": errors,
    }


def test_parameters_are_cut_into_memory_of_their_own() -> None:
    """The whole tensor is not kept alive by its shard, a strided shard is refused."""
    for report in run_processes(2, stored):
        assert report["local"] == (6, 4)
        assert torch.equal(report["whole"], torch.arange(48.0).view(12, 4))
        assert report["owned"] == 6 * 4 * 4
        assert report["buffer"]
        assert report["errors"] == [
            "w cannot be stored as {tp:S(0)/3}: its shards are not contiguous",
            "w has shape [3, 4], the program was made for [12, 4]",
        ]


def test_names_tell_ties_and_unsaved_buffers() -> None:
    model = nn.Module()
    model.a, model.b = nn.Linear(2, 2), nn.Linear(2, 2)
    model.b.weight = model.a.weight
    model.register_buffer("kept", torch.ones(1))
    model.register_buffer("table", torch.ones(1), persistent=False)
    names = names_of(model)
    assert names.aliases == {"b.weight": "a.weight"}
    assert names.not_saved == {"table"}

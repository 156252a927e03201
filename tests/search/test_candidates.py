"""Which meshes and numbers of microbatches the search tries."""

from __future__ import annotations

import pytest

from autopar.ir.errors import UsageError
from autopar.ir.mesh import Mesh
from autopar.passes.candidates import fitting, microbatch_counts, pinned_meshes, searched_meshes


def test_searched_meshes_fill_the_world_with_at_most_two_axes() -> None:
    meshes = list(searched_meshes(8, 8, 16))
    assert {mesh.world_size for mesh in meshes} == {8}
    assert all(len(mesh.axes) <= 2 for mesh in meshes)
    assert {"dp=8", "tp=8", "cp=8", "dp=2, tp=4", "dp=4, cp=2", "cp=2, tp=4"} <= {str(mesh) for mesh in meshes}


def test_experts_have_a_third_axis() -> None:
    names = {str(mesh) for mesh in searched_meshes(8, 8, 16, experts=4)}
    assert {"dp=2, ep=2, tp=2", "dp=2, ep=4", "ep=4, tp=2"} <= names
    assert not any("cp" in name and "ep" in name for name in names)
    assert "ep=8" not in names


def test_data_axes_divide_the_batch_and_cp_the_sequence() -> None:
    names = {str(mesh) for mesh in searched_meshes(4, 2, 3)}
    assert names == {"tp=4", "dp=2, tp=2"}


def test_a_free_axis_takes_what_is_left() -> None:
    assert [str(mesh) for mesh in pinned_meshes({"dp": -1, "tp": 4}, 16)] == ["dp=4, tp=4"]


@pytest.mark.parametrize(
    ("pinned", "word"), [({"dp": 3}, "3 devices"), ({"dp": 0, "tp": 8}, "dp")]
)
def test_a_mesh_that_cannot_be_is_refused_with_the_reason(pinned: dict[str, int], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        list(pinned_meshes(pinned, 8))


@pytest.mark.parametrize(
    ("batch", "devices", "multiple", "counts"),
    [
        (32, 2, 1, (1, 2, 4, 8, 16)), (24, 2, 1, (1, 2, 3, 4, 6, 12)), (105, 1, 1, (1, 3, 15, 105)),
        (63, 1, 1, (1, 3, 7, 9, 21, 63)),
        (120, 1, 1, (1, 2, 4, 8, 24, 120)), (480, 1, 1, (1, 2, 4, 8, 16, 32, 96, 480)), (3, 1, 1, (1, 3)),
        (7, 2, 1, (1,)), (24, 1, 3, (3, 6, 12, 24)), (16, 1, 3, (1, 2, 4, 8, 16)),
    ],
)  # fmt: skip
def test_microbatches_divide_a_devices_batch_powers_of_two_and_few_more(
    batch: int, devices: int, multiple: int, counts: tuple[int, ...]
) -> None:
    assert microbatch_counts(batch, devices, multiple) == counts


@pytest.mark.parametrize(
    ("mesh", "batch", "sequence", "microbatches", "words"),
    [
        ({"dp": 4}, 6, None, None, r"dp=4 does not divide the batch of 6 .*dp that work are 1, 2, 3, 6;"),
        ({"cp": 5}, 6, 12, None, r"cp=5 does not divide the sequence of 12 .*work are 1, 2, 3, 4, 6, 12;"),
        ({"dp": 2}, 6, None, 2, r"num_microbatches=2 does not divide the 3 samples .*work are 1, 3"),
        ({"dp": 2}, None, None, None, r"no input has a batch dim .*leave dp out"),
    ],
)
def test_what_does_not_divide_is_refused_with_what_does(
    mesh: dict[str, int], batch: int | None, sequence: int | None, microbatches: int | None, words: str
) -> None:
    """A batch that every device repeats is never planned in silence."""
    with pytest.raises(UsageError, match=words):
        fitting([Mesh.of(mesh)], batch, sequence, microbatches)


def test_meshes_that_fit_are_kept() -> None:
    meshes = [Mesh.of({"dp": size, "tp": 12 // size}) for size in (1, 2, 4)]
    assert [mesh.size("dp") for mesh in fitting(meshes, 6, None, None)] == [1, 2]

"""A checkpoint that does not fit, is damaged or cannot be written is told of on every rank, and nothing is lost."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

from tests import harness
from tests.checkpoints import runs
from tests.checkpoints.runs import Case

CASE = Case(name="batch norm 1d", mesh={"dp": 2}, options={"zero": 3})
OTHER = Case(name="batch norm 2d", mesh={"dp": 2})


@functools.cache
def told() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        return harness.run_processes(2, runs.folders, CASE, OTHER, folder)


def test_what_does_not_fit_is_told_and_changes_nothing() -> None:
    for found in told():
        assert "no such folder" in found["nothing there"]
        assert "no checkpoint: .metadata is missing" in found["file"]
        assert "no checkpoint: .metadata is missing" in found["full"]
        assert "up.weight has shape [36, 8] in" in found["another"]
        assert "[6, 8] in the model" in found["another"]
        assert "has no optimizer: give None to leave it out" in found["no optimizer"]
        assert "1 groups here, 2 there" in found["groups"]
        assert "is of another optimizer: its groups have no 'momentum'" in found["kind"]
        assert found["unchanged"]
        assert found["still whole"]


def test_damaged_checkpoints_are_named_by_the_file() -> None:
    for found in told():
        assert "__1_0.distcp has " in found["shortened"]
        assert "__0_0.distcp is missing" in found["without a piece"]
        assert ".metadata cannot be read" in found["unreadable"]


def test_what_one_rank_cannot_do_no_rank_does() -> None:
    first, second = told()
    assert first["no path"] == "None is no path of a folder"
    assert second["no path"] == "rank 0: None is no path of a folder"
    for found in told():
        assert "another rank something else" in found["one rank"]
        assert "another rank something else" in found["optimizer of one rank"]


def test_places_of_a_pipeline_give_one_optimizer(tmp_path: Path) -> None:
    for found in harness.run_processes(2, runs.piped, Case(name="tied", mesh={"pp": 2}), str(tmp_path / "run")):
        assert "places of the pipeline give AdamW, no optimizer" in found["none"]
        assert "places of the pipeline give AdamW, SGD" in found["kinds"]
        assert "or their options differ" in found["rates"]
        assert "has 2 groups, that of place 0 1" in found["groups"]
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_was_put_aside_is_told_of_and_kept() -> None:
    for found in told():
        assert "a save ended as it took the place of" in found["replaced"]
        assert "cannot be written" in found["broken"]
        assert found["replaced still"]


def test_a_link_goes_on_leading_to_its_folder() -> None:
    assert all(found["link"] for found in told())


def test_what_cannot_be_saved_is_told() -> None:
    for found in told():
        assert "checkpoints are folders of a filesystem" in found["remote"]
        assert "name one inside of it" in found["here"]
        assert "Linear is no ParallelModule" in found["no module"]
        assert "ConstantLR is no optimizer of torch" in found["scheduler"]
        assert "extra is a collections.defaultdict" in found["class"]
        assert "is no checkpoint and would be replaced by one" in found["over a file"]
        assert "is no checkpoint and would be replaced by one" in found["over a folder"]
        assert "an entry of extra['a'] is a torch.nn.modules.linear.Linear" in found["extra"]
        assert "row of the optimizer is a plain tensor" in found["part"]
        assert "of which torch 2." in found["chunks"]


def test_a_save_takes_the_place_of_the_one_before_when_it_is_whole(tmp_path: Path) -> None:
    for found in harness.run_processes(2, runs.replaced, CASE, str(tmp_path / "run")):
        assert "cannot be written: " in found["failed"]
        assert found["beside"] == ["run"]
        assert found["extra"] == "second"
        assert found["loaded"]

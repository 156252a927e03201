"""``autopar report``: what it writes, and how it refuses."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.report.pages import planned


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("plans") / "plan.json"
    planned({"dp": 2, "tp": 2}).save(made)
    return made


def test_a_page_is_written_with_timeline_and_alternatives(cli, path, tmp_path):
    page = tmp_path / "plan.html"
    result = cli("report", path, "-o", page, "--time-limit", "20s")
    assert (result.code, result.out) == (0, "") and f"saved {page}" in result.err.replace("\n", "")
    source = page.read_text()
    assert source.startswith("<!doctype html>") and "The whole step" in source and "chosen" in source


def test_a_plan_of_an_older_version_has_a_page_that_says_what_is_missing(cli, saved, tmp_path):
    result = cli("report", saved, "-o", tmp_path / "plan.html")
    assert result.code == 0 and "holds no graph" in result.err
    assert "no timeline" in (tmp_path / "plan.html").read_text()


def test_the_page_must_be_named(cli, saved):
    result = cli("report", saved)
    assert result.code == 2 and "Missing option '-o'" in result.err


def test_a_folder_that_does_not_exist_is_refused_before_the_search(cli, saved, tmp_path):
    result = cli("report", saved, "-o", tmp_path / "none" / "plan.html")
    assert result.code == 2 and "does not exist" in result.err


def test_a_file_that_is_no_plan_is_refused(cli, tmp_path):
    (tmp_path / "plan.json").write_text("{")
    result = cli("report", tmp_path / "plan.json", "-o", tmp_path / "plan.html")
    assert result.code == 6 and not (tmp_path / "plan.html").exists()


def test_another_profile_than_the_plans_is_refused(cli, path, tmp_path):
    (tmp_path / "other.toml").write_text("[device.H100-SXM]\nmemory_gb = 10\n")
    result = cli("report", path, "-o", tmp_path / "plan.html", "--profile", tmp_path / "other.toml")
    assert result.code == 6 and "priced with profile" in result.err


def test_without_jinja_the_way_out_is_named(cli, saved, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "jinja2" else found(name, *more)
    )
    result = cli("report", saved, "-o", tmp_path / "plan.html")
    assert result.code == 2 and "pip install 'autopar[report]'" in result.err

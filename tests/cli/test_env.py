"""``autopar env``: what a bug report needs."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from autopar.cli import env_command


def test_versions_are_those_installed(cli):
    document = cli("env", "--json").document
    assert document["python"] == platform.python_version()
    assert document["packages"]["torch"] == importlib.metadata.version("torch")
    assert "gloo" in document["torch"]["backends"]


def test_the_table_has_the_same_facts(cli):
    shown = " ".join(cli("env").out.split())
    assert f"torch {importlib.metadata.version('torch')}" in shown
    assert f"python {platform.python_version()}" in shown
    assert "torch backends gloo" in shown


def test_a_package_that_is_absent_is_said_to_be(monkeypatch, cli):
    monkeypatch.setattr(env_command, "PACKAGES", ("no-such-package",))
    assert "no-such-package not installed" in " ".join(cli("env").out.split())
    assert cli("env", "--json").document["packages"] == {"no-such-package": None}


def test_a_torch_that_cannot_be_imported_is_reported_not_fatal(monkeypatch, cli):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = cli("env", "--json")
    assert result.code == 0
    assert "torch" in result.document["torch"]["error"]


def test_variables_that_change_behaviour_are_listed(monkeypatch, cli):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert cli("env", "--json").document["variables"]["CUDA_VISIBLE_DEVICES"] == "3"

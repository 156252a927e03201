"""Help is quick and complete, and what needs no torch does not import it."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMANDS = {"plan", "show", "report", "validate", "run", "env", "profile", "cluster"}
REPORT = """
import sys
from autopar.cli import main
code = main(sys.argv[1:])
heavy = sorted({"torch", "transformers", "ortools", "numpy", "autopar.cost_model"} & set(sys.modules))
print(code, *heavy, file=sys.stderr)
"""


def imported_by(*words: object) -> tuple[str, set[str]]:
    """Exit code of a command in a process of its own, and the heavy packages that it imported."""
    command = [sys.executable, "-c", REPORT, *map(str, words)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    code, *heavy = run.stderr.splitlines()[-1].split()
    return code, set(heavy)


@pytest.mark.parametrize("words", [[], ["--help"], ["plan", "--help"], ["run", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(words):
    assert imported_by(*words) == ("0", set())


@pytest.mark.parametrize(
    "words",
    [
        ["cluster", "show", "2x8xH100-SXM"],
        ["profile", "list"],
        ["profile", "show"],
        ["plan", "zoo:gpt2", "--mesh", "dp=none"],
    ],
)
def test_tables_of_figures_and_wrong_options_need_no_torch(words):
    assert "torch" not in imported_by(*words)[1]


@pytest.mark.parametrize("command", ["show", "validate"])
def test_a_saved_plan_is_read_without_torch(command, saved):
    code, heavy = imported_by(command, saved)
    assert (code, heavy & {"torch", "transformers", "ortools"}) == ("0", set())


def test_help_names_every_command(cli):
    shown = cli("--help")
    assert shown.code == 0
    assert {word for word in shown.out.split() if word in COMMANDS} == COMMANDS


def test_without_a_command_help_is_shown(cli):
    assert cli().out == cli("--help").out


@pytest.mark.parametrize("group", ["profile", "cluster"])
def test_a_group_without_a_command_is_a_usage_error(cli, group):
    result = cli(group)
    assert result.code == 2
    assert result.err == f"UsageError: Missing command.\n  see: autopar {group} --help\n"


def test_help_shows_brackets_as_they_are_typed(cli):
    assert "NODESxGPUSxDEVICE[@RATE]" in cli("plan", "--help").out


def test_python_m_autopar_is_the_command():
    command = [sys.executable, "-m", "autopar", "profile", "list"]
    assert "builtin" in subprocess.run(command, capture_output=True, text=True, check=True).stdout

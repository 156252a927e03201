"""An error is one block, or one JSON document, and an exit code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from autopar.cli.entry import own_flags
from autopar.ir import errors

PLAN = ("plan", "zoo:gpt2", "--layers", 1, "--cluster", "1x2xCPU")
EXIT_CODES = {
    errors.UsageError: 2,
    errors.TraceError: 3,
    errors.UnsupportedError: 3,
    errors.InfeasibleError: 4,
    errors.LimitReachedError: 5,
    errors.FileFormatError: 6,
    errors.MismatchError: 6,
    errors.ProbeError: 7,
    errors.VerificationError: 8,
    errors.IRError: 1,
    ValueError: 1,
    KeyboardInterrupt: 130,
}


@pytest.mark.parametrize(("kind", "code"), EXIT_CODES.items())
def test_every_error_has_its_exit_code_and_no_result(cli, api, kind, code):
    api.error = kind("what happened")
    result = cli(*PLAN)
    assert (result.code, result.out) == (code, "")


def test_an_error_is_one_block_on_stderr(cli, api):
    api.error = errors.InfeasibleError("stage 0 needs 91.2 GB\nlargest: activations\n  smallest change: tp=4")
    assert cli(*PLAN).err == (
        "InfeasibleError: stage 0 needs 91.2 GB\n  largest: activations\n  smallest change: tp=4\n"
    )


def test_with_json_an_error_is_one_document_on_stdout(cli, api):
    api.error = errors.InfeasibleError("too big", details={"needed_bytes": 3})
    result = cli(*PLAN, "--json")
    assert result.document == {
        "error": {"code": "InfeasibleError", "message": "too big", "details": {"needed_bytes": 3}}
    }
    assert (result.code, result.err) == (4, "")


def test_a_detail_that_json_cannot_hold_is_shown_as_text(cli, api):
    api.error = errors.TraceError("no", details={"at": {1}, "s": [float("inf")], "by": {("a", 0): None}})
    details = {"at": "{1}", "s": ["inf"], "by": {"('a', 0)": None}}
    assert cli(*PLAN, "--json").document["error"]["details"] == details


def test_an_unexpected_error_says_where_and_asks_for_debug(cli, api):
    api.error = ValueError("surprise")
    result = cli(*PLAN)
    assert result.err.startswith("ValueError: surprise\n  at cli/conftest.py, line ")
    assert "run again with --debug" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("words", [(*PLAN, "--debug"), ("--debug", *PLAN)])
def test_debug_shows_the_traceback(cli, api, words):
    api.error = errors.TraceError("no")
    result = cli(*words)
    assert "Traceback (most recent call last)" in result.err
    assert result.err.endswith("TraceError: no\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan"], "Missing argument 'MODEL'."),
        (["plan", "zoo:gpt2", "--meh", "1"], "No such option: --meh"),
        (["plan", "zoo:gpt2", "--zero", "4"], "Invalid value for '--zero'"),
        (["plan", "zoo:gpt2", "--batch-size", "0"], "Invalid value for '--batch-size'"),
        (["plan", "zoo:gpt2", "--mixed-precision", "fp8"], "Invalid value for '--mixed-precision'"),
        (["plan", "zoo:gpt2", "--recompute", "some"], "Invalid value for '--recompute'"),
        (["fly", "plan.json"], "No such command 'fly'"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error_that_points_to_help(cli, words, message):
    result = cli(*words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"UsageError: {message}")
    assert "\n  see: autopar" in result.err


def test_with_json_a_wrong_command_line_is_a_document_too(cli):
    result = cli("plan", "--json")
    assert (result.code, result.document["error"]["code"]) == (2, "UsageError")
    assert result.document["error"]["details"] == {"command": "autopar plan"}


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["plan", "m", "--json", "--debug"], {"--json", "--debug"}),
        (["--debug", "run", "train.py", "--json"], {"--debug"}),
        (["run", "--nproc", "2", "train.py", "--json", "--debug"], set()),
        (["run", "--debug", "--", "train.py", "--json"], {"--debug"}),
    ],
)
def test_options_of_a_script_are_not_autopars(words, flags):
    assert own_flags(words) == flags


def test_nobody_reading_the_output_is_not_an_error():
    """``autopar profile show | head`` must end without a word."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as stdout:
        command = [sys.executable, "-m", "autopar", "profile", "show"]
        run = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    assert (run.returncode, run.stderr) == (141, "")

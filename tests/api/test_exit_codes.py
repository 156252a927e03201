"""Every mistake a user can make, made on the real command line: its exit code and what the message names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autopar.cli import main

ON_TWO = ("--cluster", "1x2xCPU")
FINE, WIDER = "tests.api.refused:fine", "tests.api.refused:wider"


def ended(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit code and message, on one line; a refused command prints no result."""
    capsys.readouterr()
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert code == 0 or out == ""
    assert "Traceback" not in err
    return code, " ".join(err.split())


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for two processes, as the command line saves it."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert main(["plan", FINE, *ON_TWO, "-o", str(path)]) == 0
    return path


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("plan", FINE, "--clusters", "1x2xCPU"), "--clusters"),
        (("plan", FINE, "--cluster", "2xCPU"), "2xCPU"),
        (("plan", FINE, "--cluster", "1x2xH1000"), "did you mean"),
        (("plan", FINE, *ON_TWO, "--mesh", "dp=3"), "has 3 devices, the cluster has 2"),
        (("plan", FINE, *ON_TWO, "--mesh", "pp=3"), "pp=3 does not divide the 2 devices"),
        (("plan", FINE, *ON_TWO, "--optimizer", "lion"), "adamw"),
        (("plan", FINE, *ON_TWO, "--profile", "nowhere"), "nowhere"),
        (("plan", FINE, *ON_TWO, "--memory-budget", "12 parsecs"), "12 parsecs"),
        (("plan", FINE, *ON_TWO, "--seq-len", "5"), "takes no seq_len"),
        (("plan", "zoo:gtp2", *ON_TWO), "did you mean gpt2"),
        (("plan", "tests.api.absent:fine", *ON_TWO), "No module named 'tests.api.absent'"),
        (("plan", "tests.api.refused:absent", *ON_TWO), "has no absent"),
        (("plan", "tests.api.refused:nothing", *ON_TWO), "returned int"),
        (("plan", "tests.api.refused:failing", *ON_TWO), "ValueError: our own mistake at refused.py, line"),
        (("plan", "tests.api.refused:lossless", *ON_TWO), "loss_fn"),
        (("run", "--nproc", "2", "absent.py"), "absent.py: no such script"),
    ],
)
def test_usage_ends_with_2(capsys, words, names):
    code, message = ended(capsys, *words)
    assert code == 2, message
    assert message.startswith("UsageError: ")
    assert names in message


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("branching", ("TraceError", "(Net)", "ranks.py:", "if self.breaks and h.sum() > 0:")),
        ("custom", ("UnsupportedError", "refused.Twice", "module: layers.1 (Inner)", "refused.py:")),
        ("reducing", ("UnsupportedError", "torch.distributed.all_reduce", "module: 1 (Reducing)", "refused.py:")),
        ("counting", ("UnsupportedError", "norm", "momentum=None")),
    ],
)
def test_a_model_that_cannot_be_traced_ends_with_3_and_is_pointed_at(capsys, model, names):
    """By the name of the module and the line of the user's own source."""
    code, message = ended(capsys, "plan", f"tests.api.refused:{model}", *ON_TWO)
    assert code == 3, message
    assert all(name in message for name in names), message


def test_too_little_memory_ends_with_4_and_says_what_is_needed(capsys):
    """What is needed, what there is, and a budget that fits, which then does."""
    code, message = ended(capsys, "plan", FINE, *ON_TWO, "--memory-budget", "2000")
    assert code == 4, message
    assert "needs more than" in message
    assert "may be used" in message
    budget = message.split("--memory-budget ")[1].split(",")[0]
    assert main(["plan", FINE, *ON_TWO, "--memory-budget", budget]) == 0


def test_an_error_as_json_carries_its_numbers(capsys):
    """One document, the facts of the message as data."""
    assert main(["plan", FINE, *ON_TWO, "--memory-budget", "2000", "--json"]) == 4
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "InfeasibleError"
    assert error["details"]["budget_bytes"] == 2000
    assert error["details"]["needed_bytes"] > 2000


@pytest.mark.parametrize("command", ["show", "validate", "run"])
@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda text: text[:-20], "not a JSON document"),
        (lambda text: text.replace('"num_microbatches"', '"num_microbatch"'), "num_microbatch"),
        (lambda text: text.replace('"world_size": 2', '"world_size": 4'), "changed after it was written"),
        (lambda text: text.replace('"gap": 0.0', '"gap": NaN'), "NaN is not a number"),
    ],
    ids=["cut off", "unknown key", "changed", "nan"],
)
def test_a_bad_plan_ends_with_6_and_names_the_key(capsys, plan, tmp_path, command, change, names):
    path, script = tmp_path / "bad.json", tmp_path / "script.py"
    path.write_text(change(plan.read_text()))
    assert path.read_text() != plan.read_text()
    script.write_text("")
    words = ("run", "--plan", path, script) if command == "run" else (command, path)
    code, message = ended(capsys, *words)
    assert code == 6, message
    assert names in message


def test_a_plan_that_is_not_there_ends_with_6(capsys, tmp_path):
    code, message = ended(capsys, "show", tmp_path / "absent.json")
    assert code == 6
    assert "absent.json: cannot be read" in message


def test_a_plan_for_another_model_ends_with_6_and_shows_the_difference(capsys, plan):
    assert ended(capsys, "validate", plan, FINE)[0] == 0
    code, message = ended(capsys, "validate", plan, WIDER)
    assert (code, message.split(":")[0]) == (6, "MismatchError")
    assert "parameter down.weight: the plan was made for f32[8,32], the model has f32[8,64]" in message


def test_a_plan_for_other_processes_ends_with_6(capsys, plan, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("")
    code, message = ended(capsys, "run", "--plan", plan, "--nproc", 3, script)
    assert code == 6
    assert "the plan is for 2 devices, --nproc is 3" in message


@pytest.mark.parametrize(
    ("option", "text"), [("--cluster", "[[nodes]]\ncount = 0"), ("--profile", "[device.X]\nfp32_tflops = 0")]
)
def test_a_bad_file_ends_with_6_and_names_key_and_line(capsys, tmp_path, option, text):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    words = ("--cluster", "1x2xCPU", option, path) if option == "--profile" else (option, path)
    code, message = ended(capsys, "plan", FINE, *words)
    assert code == 6, message
    assert f"{path}, line 2" in message


def test_the_exit_code_reaches_the_shell():
    """As a process, with one block on stderr and nothing on stdout."""
    command = [sys.executable, "-m", "autopar", "show", "absent.json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (6, "")
    assert run.stderr == "FileFormatError: absent.json: cannot be read: No such file or directory\n"

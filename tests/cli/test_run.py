"""``autopar run``: torchrun with the plan handed over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.plans import example_plan

SCRIPT = """
import os, sys
keys = ("AUTOPAR_PLAN", "OMP_NUM_THREADS", "WORLD_SIZE")
words = os.environ["RANK"], *(str(os.environ.get(key)) for key in keys), *sys.argv[1:]
os.write(1, (" ".join(words) + "\\n").encode())  # at once: the other process writes too
sys.exit(int(os.environ.get("CODE", 0)))
"""


@pytest.fixture
def script(tmp_path):
    """A training script that says what it was given."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def started(monkeypatch):
    """The commands and environments of the processes started, none of which is."""
    calls = []

    class Child:
        def __init__(self, command, env):
            calls.append((command[1:], env))

        def wait(self):
            return 0

    monkeypatch.setattr(subprocess, "Popen", Child)
    return calls


def test_a_script_is_run_on_this_machine_with_its_own_options(cli, started, script):
    assert cli("run", "--nproc", 2, script, "--lr", "3", "--json").code == 0
    ((command, _),) = started
    own = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert command == [*own, str(script), "--lr", "3", "--json"]


def test_torchrun_options_are_passed_as_they_are(cli, started):
    words = ["--nnodes=2", "--nproc-per-node", "8", "train.py", "--plan", "theirs"]
    assert cli("run", "--", *words).code == 0
    assert started[0][0] == ["-m", "torch.distributed.run", *words]


def test_the_plan_is_handed_over_by_its_absolute_path(cli, started, script, saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    cli("run", "--plan", "plan.json", "--", "--nproc-per-node=8", script)
    assert started[0][1]["AUTOPAR_PLAN"] == str(saved.resolve())


def test_without_a_plan_the_variable_is_left_alone(cli, started, script, monkeypatch):
    monkeypatch.delenv("AUTOPAR_PLAN", raising=False)
    cli("run", "--nproc", 1, script)
    assert "AUTOPAR_PLAN" not in started[0][1]


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("4", "4")])
def test_one_thread_a_process_unless_said_otherwise(cli, started, script, monkeypatch, given, expected):
    monkeypatch.delenv("OMP_NUM_THREADS")
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    cli("run", "--nproc", 1, script)
    assert started[0][1]["OMP_NUM_THREADS"] == expected


def test_a_plan_for_one_node_says_how_many_processes(cli, started, script, tmp_path):
    path = tmp_path / "plan.json"
    example_plan(on="1x8xH100-SXM").save(path)
    cli("run", "--plan", path, script)
    assert "--nproc-per-node=8" in started[0][0]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "no script to run"),
        (["--nproc", "2"], 2, "no script to run"),
        (["--", "--nnodes=2"], 2, "no script to run"),
        (["--nproc", "2", "absent.py"], 2, "absent.py: no such script"),
        (["--nproc", "2", "--", "--nnodes=2", "train.py"], 2, "exclude each other"),
        (["--nproc", "0", "train.py"], 2, "Invalid value for '--nproc'"),
        (["--plan", "absent.json", "train.py"], 6, "absent.json: cannot be read"),
    ],
)
def test_what_cannot_be_run_is_refused(cli, started, words, code, message):
    result = cli("run", *words)
    assert (result.code, started) == (code, [])
    assert message in result.err


def test_a_number_of_processes_is_needed(cli, started, script):
    result = cli("run", script)
    assert (result.code, started) == (2, [])
    assert "give --nproc N" in result.err


def test_a_plan_for_other_ranks_is_a_mismatch(cli, started, script, saved):
    result = cli("run", "--plan", saved, "--nproc", 2, script)
    assert (result.code, started) == (6, [])
    assert "the plan is for 8 devices, --nproc is 2" in result.err


def test_a_plan_for_several_nodes_asks_for_torchruns_options(cli, started, script, saved):
    result = cli("run", "--plan", saved, script)
    assert (result.code, started) == (2, [])
    assert "-- --nnodes=2 --rdzv-endpoint=HOST" in result.err


def test_two_processes_really_run(script, saved, tmp_path):
    path = tmp_path / "two.json"
    example_plan(on="1x2xCPU", mesh={"dp": 2, "tp": 1}).save(path)
    command = [sys.executable, "-m", "autopar", "run", "--plan", str(path), str(script), "--lr", "3"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert sorted(run.stdout.splitlines()) == [f"{rank} {path} 1 2 --lr 3" for rank in range(2)]


def test_the_exit_code_of_the_script_is_passed_on(script):
    command = [sys.executable, "-m", "autopar", "run", "--nproc", "1", str(script)]
    run = subprocess.run(command, capture_output=True, env=os.environ | {"CODE": "3"}, check=False)
    assert run.returncode == 1  # torchrun's own code for a failed process
    assert b"exitcode  : 3" in run.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_the_child_before_the_parent(tmp_path, number, code):
    """The child is asked to stop, and its own answer is waited for."""
    child = tmp_path / "child.py"
    child.write_text(
        "import signal, sys, time\n"
        "def stop(*_):\n    time.sleep(0.2); print('cleaned up', flush=True); sys.exit(143)\n"
        "signal.signal(signal.SIGINT, stop); signal.signal(signal.SIGTERM, stop)\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    parent = (
        "import os, signal, sys\nfrom autopar.cli import run_command\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background\n"
        f"try: code = run_command._passed_through([sys.executable, {str(child)!r}], dict(os.environ))\n"
        "except KeyboardInterrupt: code = 130\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", parent]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does: to the whole group
        else:
            process.send_signal(number)
        assert process.stdout.read() == "cleaned up\n"
    assert process.returncode == code

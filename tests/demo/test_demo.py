"""The demo: it runs, says what it did, and ends with an error where its claim does not hold."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from autopar.demo import text
from autopar.demo.__main__ import main
from autopar.demo.verdict import judge, largest_difference
from autopar.errors import UsageError, VerificationError

TINY = ("--layers=2", "--width=32", "--heads=2", "--seq-len=16", "--batch-size=4")
SMALL = ("--layers=2", "--width=256", "--heads=4", "--seq-len=64", "--batch-size=16")
DEMO = (sys.executable, "-m", "autopar.demo")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(), ("--mesh=dp=2",)])
def test_two_processes_train_as_one_does(mesh: tuple[str, ...]) -> None:
    """Without a terminal: the plan's tables, a line every few steps, the comparison; the work is split."""
    run = subprocess.run([*DEMO, *SMALL, "--steps=12", *mesh], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for words in ("Plan GPT2LMHeadModel on 1x2xCPU", "Placements", "Collectives", "2 processes, planned: step 1/12"):
        assert words in run.stdout
    found = re.search(r"largest difference +(\S+) of 12 losses", run.stdout)
    assert found is not None
    assert float(found[1]) <= 1e-4
    assert "\x1b" not in run.stdout
    assert "Traceback" not in run.stderr


@pytest.mark.slow
def test_an_interrupt_ends_every_process() -> None:
    """As a terminal does it: the signal goes to all processes, and none is left."""
    with subprocess.Popen(
        [*DEMO, *TINY, "--steps=100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        while "step 1/" not in (line := process.stdout.readline()):
            assert line, process.stderr.read()
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.endswith("interrupted\n")
    assert "Traceback" not in said
    for _ in range(50):  # what is still ending is given five seconds
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("a process of the demo is still running")


@pytest.mark.slow
def test_an_error_of_the_processes_is_that_of_the_demo() -> None:
    run = subprocess.run([*DEMO, *TINY, "--mesh=pp=3"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith("UsageError: mesh pp=3 does not divide the 2 devices")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps=0"], "--steps is 0; it must be 1 or more"),
        (["--width=30", "--heads=4"], "--width 30 cannot be cut into 4 heads"),
        (["--mesh=dp"], "dp"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_batches_are_windows_of_the_text_and_the_same_for_everyone() -> None:
    words = text.standard_library()
    made = [text.batch(words, step, batch_size=3, seq_len=20)["input_ids"] for step in (0, 0, 1)]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    for row in made[0]:
        assert bytes(row.tolist()) in bytes(words.tolist())


def test_a_library_without_sources_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no Python sources"):
        text.standard_library(tmp_path)


def test_a_curve_that_leaves_the_reference_is_an_error() -> None:
    with pytest.raises(VerificationError, match=r"(?s)differ by 1\.00e-03.*first at step 2: 2\.001000 .* 2\.000000"):
        judge([3.0, 2.001], [3.0, 2.0])


def test_a_loss_that_is_not_a_number_is_an_error() -> None:
    assert math.isnan(largest_difference([3.0, math.nan], [3.0, 2.0]))
    with pytest.raises(VerificationError, match="differ by nan"):
        judge([3.0, math.nan], [3.0, 2.0])


def test_a_loss_that_does_not_fall_is_an_error() -> None:
    with pytest.raises(VerificationError, match=r"did not fall: 2\.0000 at the start, 2\.5000 at the end"):
        judge([2.0, 2.5], [2.0, 2.5])


def test_equal_curves_that_fall_pass() -> None:
    judge([3.0, 2.0], [3.0, 2.0 + 1e-5])

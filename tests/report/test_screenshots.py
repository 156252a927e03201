"""The page of a large plan in a real browser: its width, its size, what it asks for. Chromium must be there."""

from __future__ import annotations

import html
import json
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autopar.cli import main
from tests.report.pages import Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODEL = [
    "plan", "zoo:llama3-70b", "--cluster", "8x8xH100-SXM", "--mixed-precision", "bf16", "--batch-size", "512",
    "--seq-len", "4096",
]  # fmt: skip
SIZES = (1280, 400)
# Runs in a copy of the page, in a frame of the width under test (a window has a least width of its own).
PROBE = """<script>
addEventListener("load", () => parent.postMessage({
  inner: innerWidth, scroll: document.documentElement.scrollWidth,
  loaded: performance.getEntriesByType("resource").map(entry => entry.name),
  wide: [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll, svg") &&
    e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80)),
}, "*"))
</script>"""
FRAME = """<!doctype html><script>addEventListener("message", e => document.title = JSON.stringify(e.data))</script>
<iframe src="probed.html" style="border:0;width:%dpx;height:900px"></iframe>"""


def chromium(folder: Path, *words: str) -> str:
    """Run a browser without a network and return its standard output; fails where there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "these tests need chromium on the PATH"
    command = [
        program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        f"--user-data-dir={folder / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND", *words,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    assert main([*MODEL, "-o", str(folder / "plan.json")]) == 0
    made = folder / "plan.html"
    assert main(["report", str(folder / "plan.json"), "-o", str(made), "--time-limit", "30s"]) == 0
    return made


def probed(page: Path, width: int) -> dict[str, Any]:
    source = page.read_text()
    (page.parent / "probed.html").write_text(source.replace("</body>", f"{PROBE}</body>"))
    frame = page.parent / f"frame{width}.html"
    frame.write_text(FRAME % width)
    dumped = chromium(page.parent, "--virtual-time-budget=10000", "--dump-dom", frame.as_uri())
    title = re.search(r"<title>(.*?)</title>", dumped)
    assert title is not None, dumped
    return dict(json.loads(html.unescape(title[1])))


@pytest.mark.parametrize("width", SIZES)
def test_nothing_overflows_and_nothing_is_loaded(page, width):
    found = probed(page, width)
    assert (found["inner"], found["scroll"]) == (width, width)
    assert (found["loaded"], found["wide"]) == ([], [])


@pytest.mark.parametrize("width", SIZES)
def test_the_page_can_be_photographed(page, width):
    picture = page.parent / f"{width}.png"
    chromium(page.parent, f"--screenshot={picture}", f"--window-size={width},3000", page.as_uri())
    data = picture.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (width, 3000)
    assert len(data) > 50_000  # not a blank page


def test_the_page_is_under_two_megabytes_and_complete(page):
    source = page.read_text()
    assert len(source.encode()) < 2_000_000
    sections = Page(source).sections
    assert [*sections] in (
        ["", "mesh", "model", "memory", "time", "alternatives"],
        ["", "mesh", "model", "memory", "time", "recipes", "alternatives"],
    )
    assert source.count("<title>device ") == 64
    for section, words in {
        "": ("zoo:llama3-70b", "8x8xH100-SXM", "bf16", "adamw"), "model": ("× 80", "mlp.up_proj.weight"),
        "memory": ("activations",), "time": ("The whole step", "Close-up", "simulator"), "alternatives": ("chosen",),
    }.items():  # fmt: skip
        assert all(word in sections[section] for word in words), section

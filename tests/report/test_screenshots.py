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
from autopar.ir.plan import RECIPE_NAMES
from tests.report.pages import Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODEL = [
    "plan", "zoo:llama3-70b", "--cluster", "8x8xH100-SXM", "--mixed-precision", "bf16", "--batch-size", "512",
    "--seq-len", "4096",
]  # fmt: skip
SIZES = (1280, 400)
# Runs in a copy of the page, all of it unfolded, in a frame of the width under test (a window has a least width of its
# own).
PROBE = """<script>
document.querySelectorAll("details").forEach(e => e.open = true);
addEventListener("load", () => parent.postMessage({
  inner: innerWidth, scroll: document.documentElement.scrollWidth,
  loaded: performance.getEntriesByType("resource").map(entry => entry.name),
  wide: [...document.querySelectorAll("body *")].filter(e => !e.closest("svg") &&
    e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80)),
  cut: [...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth + 1)
    .map(e => e.getAttribute("aria-label")),
  over: overlapping(),
}, "*"))
// Lines of text that lie on one another.
function overlapping() {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), lines = [], found = [];
  while (walker.nextNode()) {
    if (!walker.currentNode.data.trim() || walker.currentNode.parentElement.closest("title, script, style")) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    for (const box of range.getClientRects()) if (box.width > 1) lines.push([box, walker.currentNode.data.trim()]);
  }
  lines.sort((a, b) => a[0].top - b[0].top);
  lines.forEach(([a, one], at) => {
    for (const [b, other] of lines.slice(at + 1)) {
      if (b.top > a.bottom - 4) break;
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1) found.push([one, other]);
    }
  });
  return [lines.length, found];
}
</script>"""
FRAME = """<!doctype html><script>addEventListener("message", e => document.title = JSON.stringify(e.data))</script>
<iframe src="probed.html" style="border:0;width:%dpx;height:900px"></iframe>"""
SHOWN = """<!doctype html><body style="margin:0">
<iframe src="plan.html" style="border:0;width:%dpx;height:3000px"></iframe>"""


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
    assert (found["loaded"], found["wide"], found["cut"]) == ([], [], [])
    lines, overlapping = found["over"]
    assert lines > 300
    assert overlapping == []


@pytest.mark.parametrize("width", SIZES)
def test_the_page_can_be_photographed(page, width):
    """In a frame of its width, since a window has a least width of its own."""
    picture, frame = page.parent / f"{width}.png", page.parent / f"shown{width}.html"
    frame.write_text(SHOWN % width)
    chromium(page.parent, f"--screenshot={picture}", f"--window-size={max(SIZES)},3000", frame.as_uri())
    data = picture.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (max(SIZES), 3000)
    assert len(data) > 50_000  # not a blank page


def test_the_page_can_be_printed(page):
    """On paper what can be folded out on a screen is all there."""
    printed = page.parent / "plan.pdf"
    chromium(page.parent, f"--print-to-pdf={printed}", page.as_uri())
    pages = len(re.findall(rb"/Type\s*/Page\b", printed.read_bytes()))
    assert 3 <= pages <= 12


def test_the_page_is_under_two_megabytes_and_complete(page):
    source = page.read_text()
    assert len(source.encode()) < 2_000_000
    sections = Page(source).sections
    assert [*sections] == ["", "mesh", "model", "memory", "time", "recipes", "alternatives"]
    assert source.count("<title>device ") == 64
    for section, words in {
        "": ("zoo:llama3-70b", "8x8xH100-SXM", "bf16", "adamw", "the best of five standard recipes"),
        "mesh": ("node 0", "node 7", "sent by a device in a step"), "model": ("× 80", "mlp.up_proj.weight", "ZeRO"),
        "memory": ("activations", "parameters", "81.2 GB"), "time": ("The whole step", "Close-up", "simulator"),
        "recipes": ("this plan", *RECIPE_NAMES, "does not fit"), "alternatives": ("chosen", "ruled out", "slower"),
    }.items():  # fmt: skip
        assert all(word in sections[section] for word in words), section

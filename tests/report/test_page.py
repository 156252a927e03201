"""What a page says of a plan, and that it needs nothing but itself."""

from __future__ import annotations

import re
from typing import Any

import pytest

from autopar.ir.mesh import Mesh
from autopar.ir.plan import RecipeInfo
from autopar.passes.found import Tried
from autopar.report import build, render
from tests.cli.plans import LAYER, example_plan
from tests.report.pages import Page, planned, whole_page, with_recipes

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def flat() -> str:
    return whole_page(planned({"dp": 2, "tp": 2}, num_microbatches=4))


@pytest.fixture(scope="module")
def piped() -> str:
    return whole_page(planned({"pp": 2, "dp": 2}, num_microbatches=4))


@pytest.fixture(scope="module")
def example() -> Page:
    return Page(render(build(example_plan())))


def test_the_headline_has_what_a_reader_asks_first(example):
    text = example.sections[""]
    for word in (
        "zoo:llama3-8b",
        "2x4xH100-SXM",
        "412 ms",
        "410 ms",
        "not proven optimal",
        "dp 2 × tp 4",
        "bf16",
        "adamw",
    ):
        assert word in text
    assert "faster than" not in text


def test_a_device_is_drawn_with_its_position_on_every_axis():
    source = render(build(example_plan()))
    assert "device 6: dp 1, tp 2" in source
    assert source.count("<title>device ") == 8
    assert "inside a node" in Page(source).sections["mesh"] and "across 2 nodes, one device on each" in source


def test_many_devices_are_drawn_node_by_node():
    plan = example_plan(on="64x8xH100-SXM", mesh={"dp": 64, "tp": 8})
    source = render(build(plan))
    assert source.count("<figcaption>node ") == 64 and "<title>device " not in source
    assert "0 – 7" in source and len(source) < 250_000


def test_nodes_beyond_the_most_are_counted():
    plan = example_plan(on="200x8xH100-SXM", mesh={"dp": 200, "tp": 8})
    assert "and 104 more nodes" in Page(render(build(plan))).sections["mesh"]


def test_blocks_and_parameters_are_listed_as_used_and_as_kept(example):
    text = example.sections["model"]
    assert "layer × 32" in text and "32 × ZeRO 3, full recomputation" in text and "61 operations" in text
    assert LAYER in text and "self_attn.q_proj.weight" in text and "f32[128256,4096]" in text
    labels = [picture["aria-label"] for picture in example.pictures() if picture.get("class") == "matrix"]
    assert labels.count("tp S(0)") == 3 and labels.count("dp S(0), tp S(0)") == 1 and labels.count("whole") == 2


def test_memory_is_drawn_against_the_budget_by_its_parts(example):
    text = example.sections["memory"]
    assert "81.2 GB" in text and "71.3 GB" in text and "activations 7.3 GB" in text
    (bar,) = [p for p in example.pictures() if "of 81.2 GB" in p["aria-label"]]
    assert bar["aria-label"] == "each device: 71.3 GB of 81.2 GB"


def test_each_place_of_a_pipeline_has_its_memory():
    plan = example_plan(
        memory={"budget_bytes": 10**11, "peak_bytes": [9 * 10**10, 5 * 10**10], "parts": {"gradients": 1}}
    )
    text = Page(render(build(plan))).sections["memory"]
    assert "place 0" in text and "place 1" in text and "the fullest place" in text


def test_parts_that_exceed_the_peak_are_admitted(example):
    plan = example_plan(memory={"budget_bytes": 100, "peak_bytes": [50], "parts": {"gradients": 40, "optimizer": 20}})
    assert "add up to more than the peak" in Page(render(build(plan))).sections["memory"]
    assert "add up" not in example.sections["memory"]


def test_the_simulated_step_stands_beside_the_plan(flat):
    page = Page(flat)
    text = page.sections["time"]
    for word in (
        "plan",
        "simulator",
        "exposed communication",
        "pipeline bubble",
        "The whole step",
        "Close-up",
        "compute",
    ):
        assert word in text
    assert re.search(r"\d (ms|µs|s)", text)
    assert any(p["aria-label"].startswith("simulator: compute: ") for p in page.pictures())
    tracks = [p["aria-label"] for p in page.pictures() if p.get("class") == "track"]
    assert any(label.startswith("compute: busy") for label in tracks)
    assert any("tp" in label for label in tracks)


def test_each_place_of_a_pipeline_has_a_track(piped):
    page = Page(piped)
    assert "place 0, compute" in page.sections["time"] and "place 1, compute" in page.sections["time"]
    assert "stage 1, place 1: from transformer.h." in page.sections["model"]


def test_the_meshes_that_lost_are_named_with_how_far_off_they_are(flat):
    text = Page(flat).sections["alternatives"]
    assert "dp 2 × tp 2" in text and "chosen" in text and "the plan" in text


def tried(mesh: dict[str, int], bound_s: float, best_s: float | None = None) -> Tried:
    best_ns = None if best_s is None else round(best_s * 1e9)
    return Tried(full=Mesh.of(mesh), microbatches=4, schedule=None, bound_ns=round(bound_s * 1e9), objective_ns=best_ns)


def test_what_is_known_of_each_mesh_is_told_apart():
    """The example's step takes 0.412 s."""
    found = [
        tried({"dp": 8}, 0.824), tried({"dp": 2, "tp": 4}, 0.41, 0.412), tried({"dp": 4, "tp": 2}, 0.4, 0.4532),
        tried({"tp": 8}, 0.42, 0.5), tried({"cp": 8}, 0.3914),
    ]  # fmt: skip
    page = build(example_plan(), None, found).alternatives
    assert page is not None
    assert [(row.mesh.replace("\u00a0", " "), row.verdict, row.against) for row in page.shown] == [
        ("dp 2 × tp 4", "chosen", "the plan"),
        ("tp 8", "searched, ruled out", "21.4 % slower"),
        ("dp 4 × tp 2", "searched, not ruled out", "10.0 % slower"),
        ("cp 8", "not searched in time", "at most 5.0 % faster"),
        ("dp 8", "ruled out by a bound", "at least 100.0 % slower"),
    ]


def test_of_many_meshes_the_rest_is_folded_away():
    found = [tried({"dp": 8, f"x{number}": 1}, 0.5 + number / 100) for number in range(200)]
    page = build(example_plan(), None, found).alternatives
    assert page is not None
    assert (len(page.shown), len(page.folded), page.left_out) == (6, 150, 44)
    assert "and 44 others" in render(build(example_plan(), None, found))


def test_a_plan_without_its_graph_says_what_is_missing(example):
    assert "no timeline" in example.sections["time"] and "older version" in example.sections["time"]
    assert "no alternatives" in example.sections["alternatives"]


def recipe(time_s: float | None, why: str = "", **found: Any) -> RecipeInfo:
    return RecipeInfo(objective_s=time_s, fits=not why, why=why, **found)


def test_recipes_are_compared_and_those_that_do_not_fit_are_said_so():
    """Axes are told outermost first, whatever order a file keeps."""
    plan = with_recipes(
        data_parallel=recipe(0.3, "needs 100 GB"), zero3=recipe(0.9, mesh={"dp": 8}, num_microbatches=1),
        megatron=recipe(0.824, mesh={"dp": 2, "tp": 4}, num_microbatches=16), gpipe=recipe(None, "no equal stages"),
        hybrid_3d=recipe(1.0, mesh={"dp": 2, "pp": 2, "tp": 2}, num_microbatches=8),
    )  # fmt: skip
    page = Page(render(build(plan)))
    assert "2.00× faster than the best of five standard recipes (megatron)" in page.sections[""]
    text = page.sections["recipes"]
    for words in (
        "824 ms", "2.00×", "does not fit: needs 100 GB", "does not fit: no equal stages", "dp 8, 1 microbatch",
        "dp 2 × tp 4, 16 microbatches", "pp 2 × dp 2 × tp 2, 8 microbatches",
    ):  # fmt: skip
        assert words in text
    assert text.index("megatron") < text.index("zero3") < text.index("data_parallel") < text.index("gpipe")
    assert "recipes" not in Page(render(build(example_plan()))).sections


def test_where_no_recipe_fits_that_is_said():
    text = Page(render(build(with_recipes(zero3=recipe(0.3, "no"), gpipe=recipe(None, "no"))))).sections[""]
    assert "none of the five standard recipes fits" in text


def test_a_faster_recipe_is_admitted():
    text = Page(render(build(with_recipes(zero3=recipe(0.206))))).sections[""]
    assert "2.00× slower than the best of five standard recipes (zero3)" in text


def test_names_are_text_wherever_they_stand():
    name = f"a.{EVIL}"
    plan = example_plan(
        model=EVIL, optimizer=EVIL, axes=["dp", EVIL], mesh={"dp": 2, EVIL: 4},
        placements={name: {EVIL: "S(0)", "dp": "R"}}, storage={name: {EVIL: "S(0)", "dp": "S(0)"}},
        blocks=[{"name": EVIL, "count": 2, "nodes": 3}], stages=[{"mark": "1", "where": EVIL}], schedule=EVIL,
        fingerprint={"graph_sha256": "", "parameters": {name: "f32[4,4]"}, "inputs": {EVIL: "f32[2]"}},
        memory={"budget_bytes": 9, "peak_bytes": [8], "parts": {EVIL: 8}}, status=EVIL,
    )  # fmt: skip
    source = render(build(plan))
    assert "<script" not in source.lower()
    assert EVIL in Page(source).sections["model"]


def test_attributes_cannot_be_left():
    source = render(build(example_plan(blocks=[{"name": '" onload="x', "count": 2, "nodes": 3}])))
    assert not [attributes for _, attributes in Page(source).elements if "onload" in attributes]


def test_nothing_is_loaded_and_nothing_runs(flat, piped):
    for source in (flat, piped):
        assert not re.search(r"https?:|//\w|@import|url\(|\bsrc=|srcset|<script|<iframe|\bon\w+=", source)
        links = [a["href"] for _, a in Page(source).elements if "href" in a]
        assert links == ["data:,"]


def test_every_picture_says_what_it_shows(flat, piped):
    for source in (flat, piped):
        page = Page(source)
        assert not page.open
        drawn = [attributes for tag, attributes in page.elements if tag == "svg"]
        assert all(attributes.get("aria-label") or attributes.get("aria-hidden") == "true" for attributes in drawn)
        assert ("html", {"lang": "en"}) in page.elements


def test_a_page_is_small(flat, piped):
    assert max(len(flat.encode()), len(piped.encode())) < 500_000


def test_the_same_plan_makes_the_same_page(piped):
    assert whole_page(planned({"pp": 2, "dp": 2}, num_microbatches=4)) == piped


def test_a_plan_for_one_device_has_a_page_without_axes():
    plan = example_plan(on="1x1xH100-SXM", mesh={}, axes=[], placements={"w": {}}, storage={"w": {}}, collectives=[])
    page = Page(render(build(plan)))
    assert (
        "one device" in page.sections[""] and "node 0" in page.sections["mesh"] and "axis" not in page.sections["mesh"]
    )


def test_nodes_of_different_sizes_are_drawn_as_they_are():
    nodes = [{"count": 1, "gpus": 4, "device": "H100-SXM"}, {"count": 2, "gpus": 2, "device": "A100-SXM-80GB"}]
    source = render(build(example_plan(cluster={"nodes": nodes, "network": {}}, world_size=8)))
    assert "node 1: devices 4 to 5" in source
    assert "1 node of 4 H100-SXM + 2 nodes of 2 A100-SXM-80GB" in Page(source).sections["mesh"]

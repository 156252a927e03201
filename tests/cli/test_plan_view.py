"""A plan as tables."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from autopar.cli.plan_placements import block_of, placed_groups
from autopar.cli.plan_view import warnings
from autopar.ir.plan import LATE
from tests.cli.plans import collective, example_plan


@pytest.fixture
def shown(cli, tmp_path):
    """Show a plan that differs from the example, and return stdout."""

    def _shown(**changed):
        path = tmp_path / "plan.json"
        example_plan(**changed).save(path)
        result = cli("show", path)
        assert result.code == 0
        return result.out

    return _shown


def lines(text: str) -> list[str]:
    """The lines with one space between words."""
    return [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_is_wider_than_the_terminal(cli, saved, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(len(line) for line in cli("show", saved).out.splitlines()) <= columns


def test_nothing_is_cut_off_on_a_narrow_terminal(shown):
    name = "encoder.layers.*." + "very_long_module_name." * 5 + "weight"
    text = shown(placements={name: {"dp": "R", "tp": "S(0)/3"}}, storage={name: {"dp": "R", "tp": "S(0)/3"}})
    found = re.sub(r"[\s─]", "", text)
    assert "…" not in text
    assert "tp:S(0)/3" in found


def test_the_head_says_what_it_costs_and_how_good_it_is(shown):
    text = lines(shown())
    assert text[0] == "Plan zoo:llama3-8b on 2x4xH100-SXM"
    assert "step time 412 ms (gap 0.5 %, time limit)" in text
    assert "lower bound 410 ms: no plan that the options allow is faster" in text
    assert "mesh dp 2 × tp 4 (8 devices)" in text
    assert "microbatches 4" in text


def test_unequal_shares_are_told_by_rank(shown):
    text = lines(shown(mesh={"dp": 8}, axes=["dp"], shares={"dp": [5] * 4 + [3] * 4}, placements={}, storage={}))
    assert "microbatches 4 on average: 4 ranks 5, 4 ranks 3" in text


def test_a_proven_plan_says_so_and_warns_of_nothing():
    plan = example_plan(
        proven_optimal=True, gap=0.0, islands=[], profile={"name": "b", "sha256": "", "priced": {}}
    )
    assert list(warnings(plan)) == []


def test_what_the_reader_should_know_is_on_stderr(cli, saved):
    result = cli("show", saved)
    assert "warning: not proven optimal (time limit): a plan 0.5 % faster may exist\n" in result.err
    assert "warning: 1.0 % of the work is not divided between devices" in result.err
    assert "for want of a measured efficiency: softmax;" in result.err
    assert "warning" not in result.out


def test_parameters_stand_under_their_block_as_used_and_as_kept(shown):
    text = lines(shown())
    start = text.index("model.layers.*")
    assert text[start + 1 : start + 3] == [
        "input_layernorm.weight R the same",
        "self_attn.q_proj.weight tp:S(0) dp:S(0) tp:S(0)",
    ]
    assert text[start - 1] == "lm_head.weight tp:S(0) the same"


def test_each_block_has_its_zero_level_and_recompute(shown):
    text = lines(shown())
    assert "layer 32 61 3 full" in text
    assert "rest of the model 1 0" in text


def test_parameters_cut_inside_nodes_are_told_beside_the_level(shown):
    text = lines(shown(hsdp={"layer": {"dp": 2}}))
    assert "in 8s: among 8 neighbours" in " ".join(text)
    assert "layer 32 61 3, dp in 2s full" in text
    assert "rest of the model 1 0" in text


def test_memory_is_set_against_the_budget_by_stage(shown):
    memory = {"budget_bytes": 100_000_000_000, "peak_bytes": [90_000_000_000, 50_000_000_000], "parts": {}}
    text = lines(shown(memory=memory))
    assert any(line.startswith("stage 0 90 GB 90.0 % ██") for line in text)
    assert any(line.startswith("stage 1 50 GB 50.0 % ██") for line in text)


def test_step_time_is_split(shown):
    assert any(line.startswith("exposed communication 80 ms 19.4 %") for line in lines(shown()))


def test_collectives_are_the_largest_first_with_their_bytes_a_step(shown):
    rows = [line for line in lines(shown()) if line.startswith(("all_reduce", "reduce_scatter"))]
    assert rows[0] == "reduce_scatter dp gradients 436 MB 32 14 GB model.layers.*"
    assert rows[1].startswith("all_reduce tp forward 67.1 MB 128 8.59 GB")


def test_many_collectives_are_summed_up(shown):
    many = [collective("all_gather", "dp", 1000 + i, 1, f"layers.{i}", "forward") for i in range(25)]
    assert "and 5 smaller ones, 5.01 kB in all: --json lists them" in lines(shown(collectives=many))


def test_islands_and_prices_are_listed(shown):
    text = lines(shown())
    assert "aten.sort.default 2 1.0 %" in text
    assert "Prices: cost profile builtin (sha256 a3a3a3a3a3a3)" in text
    assert "measured rate matmul" in text


RECIPES = {
    "data_parallel": {"objective_s": 0.5, "fits": False, "why": "needs 128.5 GB", "mesh": {"dp": 8},
                      "num_microbatches": 1},
    "zero3": {"objective_s": 0.618, "fits": True, "mesh": {"dp": 8}, "num_microbatches": 2},
    "gpipe": {"objective_s": None, "fits": False, "why": "3 repeated layers cannot be cut"},
}  # fmt: skip


def test_standard_recipes_stand_beside_the_plan(shown):
    text = lines(shown(recipes=RECIPES))
    assert "1.50× faster than the best of five standard recipes (zero3)" in text[text.index("Standard recipes") + 1]
    assert "data_parallel 500 ms 1.21× no needs 128.5 GB" in text
    assert "zero3 618 ms 1.50× yes dp 8, 2 microbatch(es)" in text
    assert "gpipe no 3 repeated layers cannot be cut" in text


@pytest.mark.parametrize(
    ("seconds", "fits", "words"),
    [
        (0.412, True, "as fast as the best of five standard recipes (zero3)"),
        (0.206, True, "2.00× slower than the best of five standard recipes (zero3)"),
        (0.206, False, "none of the five standard recipes fits"),
    ],
)
def test_a_plan_says_how_it_stands_to_the_recipes(seconds, fits, words):
    plan = example_plan(recipes={"zero3": {"objective_s": seconds, "fits": fits}})
    assert plan.compared() == words
    assert plan.explain().splitlines()[-1] == words


@pytest.mark.parametrize(
    ("late", "words"),
    [
        ({"gpipe"}, "1.50× faster than the best of 4 standard recipes known in time (zero3)"),
        ({"gpipe", "zero3"}, "none of 3 standard recipes known in time fits"),
    ],
)
def test_recipes_that_there_was_no_time_for_are_not_said_to_be_beaten(shown, late, words):
    unknown = {name: {"objective_s": None, "fits": False, "why": LATE} for name in late}
    text = lines(shown(recipes={**RECIPES, **unknown}))
    assert text[text.index("Standard recipes") + 1] == words
    assert "gpipe not worked out within the time limit" in text


def test_a_plan_without_recipes_says_nothing_of_them(shown):
    assert "recipes" not in example_plan().document()
    assert "tandard recipe" not in shown() + example_plan().explain()


def test_a_recipe_that_does_not_exist_is_refused():
    with pytest.raises(ValidationError, match="recipe zero2: the standard recipes are data_parallel, zero3"):
        example_plan(recipes={"zero2": {"objective_s": 1.0, "fits": True}})


def test_one_device_needs_no_mesh_and_sends_nothing(shown):
    text = shown(on="1x1xCPU", mesh={}, axes=[], placements={}, storage={}, collectives=[], islands=[])
    assert "one device" in text
    assert "Collectives" not in text
    assert "Islands" not in text


def test_the_file_and_its_hash_close_the_page(cli, saved):
    last = "".join(cli("show", saved).out.split()).removesuffix("\n")
    assert last.endswith(f"plan.jsonsha256{example_plan().sha256[:16]}")


def test_show_json_is_the_saved_document(cli, saved):
    assert cli("show", saved, "--json").document == example_plan().document()


def test_colours_are_for_terminals_that_want_them(cli, saved, monkeypatch):
    plain = cli("show", saved).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in cli("show", saved).out
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = cli("show", saved).out
    assert "\x1b[3" not in coloured
    assert re.sub(r"\x1b\[\d*m", "", coloured) == plain


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("model.layers.*.mlp.weight", "model.layers.*"),
        ("layers.0-15.experts.*.w", "layers.0-15.experts.*"),
        ("h.{0..3}.w", "h.{0..3}"),
        ("lm_head.weight", ""),
    ],
)
def test_the_block_of_a_pattern_ends_at_its_last_repeat(name, block):
    assert block_of(name) == block


def test_layers_that_are_placed_alike_are_one_group(shown):
    """In the order of their numbers, as runs; the rest of the model first."""
    split, whole = {"dp": "R", "tp": "S(0)"}, {"dp": "R", "tp": "R"}
    placed = {f"model.layers.{i}.fc.weight": whole if i in (3, 11) else split for i in range(12)}
    placed |= {"model.layers.*.norm.weight": whole, "head.weight": split}
    plan = example_plan(placements=placed, storage=placed)
    groups = {group.title: dict(group.parts) for group in placed_groups(plan)}
    assert list(groups) == ["", "model.layers.*", "model.layers.0-2, 4-10", "model.layers.3, 11"]
    assert groups["model.layers.3, 11"] == {"fc.weight": ("model.layers.3.fc.weight", "model.layers.11.fc.weight")}
    text = lines(shown(placements=placed, storage=placed))
    assert text[text.index("model.layers.0-2, 4-10") + 1] == "fc.weight tp:S(0) the same"
    assert len([line for line in text if line.startswith("fc.weight")]) == 2


def test_layers_that_are_kept_otherwise_are_groups_of_their_own():
    used = {"dp": "R", "tp": "S(0)"}
    placed = {f"layers.{i}.fc.weight": used for i in range(3)}
    kept = {name: {"dp": "S(0)" if i else "R", "tp": "S(0)"} for i, name in enumerate(placed)}
    plan = example_plan(placements=placed, storage=kept)
    assert [group.title for group in placed_groups(plan)] == ["layers.0", "layers.1-2"]

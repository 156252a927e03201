"""A simulated step of programs whose times follow from a few numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.cost_model import Cluster
from autopar.cost_model.simulator import Timeline, simulate
from autopar.ir.errors import UsageError
from autopar.ir.mesh import Mesh
from tests.simulator.programs import Known, Prices, program_of, step

DP, TP, ONE = Mesh((("dp", 2),)), Mesh((("tp", 2),)), Mesh(())

TWO = """graph @main {
  %x: f32[8,8] = input() {name="x"}
  %w: f32[8,8] = param() {fqn="w"}
  %y: f32[8,8] = aten.linear.default(%x, %w) {}
  %loss: f32[] = aten.sum.default(%y) {}
  return %loss
}
"""
# a product whose partial results are added up, and one beside it that does not need the sum
BESIDE = """graph @main mesh(tp=2) {
  %x: f32[8,8]{tp:S(1)} = input() {name="x"}
  %w: f32[8,8]{tp:S(1)} = param() {fqn="w"}
  %y: f32[8,8]{tp:P(sum)} = aten.linear.default(%x, %w) {}
  %u: f32[8,8]{tp:R} = input() {name="u"}
  %v: f32[8,8]{tp:R} = aten.matmul.default(%u, %u) {}
  %y.1: f32[8,8]{tp:R} = comm.all_reduce(%y) {axis="tp", backward="none"}
  %z: f32[8,8]{tp:R} = aten.add.Tensor(%y.1, %v) {}
  %loss: f32[]{tp:R} = aten.sum.default(%z) {}
  return %loss
}
"""
LAYERS = """block @layer mesh(dp=2) {
  %0: f32[8,8]{dp:S(0)} = input() {name="in0"}
  %1: f32[8]{dp:R} = param() {slot=0}
  %1.dp: f32[8]{dp:R*} = comm.identity(%1) {axis="dp", backward="all_reduce", owner="runtime"}
  %2: f32[8,8]{dp:S(0)} = aten.add.Tensor(%0, %1.dp) {}
  return %2
}
graph @main mesh(dp=2) {
  %x: f32[8,8]{dp:S(0)} = input() {name="x"}
  %y: f32[8,8]{dp:S(0)} = call(%x) {block="layer", carried=1, count=3, params=(("a"), ("b"), ("c"))}
  %loss: f32[]{dp:P(sum)} = aten.sum.default(%y) {}
  return %loss
}
"""
THREE = dict.fromkeys("abc", ("dp",))
ADD = "  %2: f32[8,8]{dp:S(0)} = aten.add.Tensor(%0, %1.dp) {}\n"


def layers(*lines: str) -> str:
    """``LAYERS`` with other operations; ``%w`` is a weight."""
    weight = "  %w: f32[8,8]{dp:R} = param() {slot=1}\n"
    named = LAYERS.replace('("a"), ("b"), ("c")', '("a", "wa"), ("b", "wb"), ("c", "wc")')
    return named.replace(ADD, weight + "".join(f"  {line}\n" for line in lines))


def ns(timeline: Timeline) -> float:
    return round(timeline.step_s * 1e9, 6)


def waits(timeline: Timeline) -> dict[str, float]:
    (account,) = timeline.places
    return {cause: round(seconds * 1e9, 6) for cause, seconds in account.waits_s.items() if seconds}


def test_two_operations_run_forward_and_backward_one_after_the_other() -> None:
    found = step(program_of(TWO, ONE), {"aten.linear.default": (10, 20), "aten.sum.default": (3, 4)})
    assert ns(found) == 37
    told = [(event.name, event.start_ns, event.end_ns) for event in found.events if event.name.startswith("aten")]
    assert told == [
        ("aten.linear.default", 0, 10), ("aten.sum.default", 10, 13), ("aten.sum.default", 13, 17),
        ("aten.linear.default", 17, 37),
    ]  # fmt: skip


def test_microbatches_run_in_turn_and_their_gradients_are_added_up() -> None:
    prices: Prices = {"aten.linear.default": (10, 20), "aten.add_.Tensor": (0, 5), "optimizer": (0, 7)}
    program = program_of(TWO, ONE, parameters={"w": ()}, microbatches=3)
    found = step(program, prices)
    assert ns(found) == 3 * 30 + 2 * 5 + 7  # the first microbatch's gradients are there already
    assert found.places[0].busy_s["grad"] == pytest.approx(10e-9)


def test_a_collective_whose_result_is_needed_at_once_is_waited_for() -> None:
    text = BESIDE.replace("  %v: f32[8,8]{tp:R} = aten.matmul.default(%u, %u) {}\n", "").replace("%v)", "%u)")
    found = step(program_of(text, TP), {"aten.linear.default": 10, "all_reduce": 4})
    assert (ns(found), waits(found)) == (14, {"collectives": 4})


@pytest.mark.parametrize(("heavy", "expected"), [(10, 20), (4, 14), (1, 14)])
def test_a_collective_is_hidden_behind_work_that_does_not_need_it(heavy: int, expected: int) -> None:
    """It is sent with its operand, and only what is left of it is waited for."""
    found = step(program_of(BESIDE, TP), {"aten.linear.default": 10, "aten.matmul.default": heavy, "all_reduce": 4})
    assert ns(found) == expected
    assert waits(found) == ({"collectives": 4 - heavy} if heavy < 4 else {})


@pytest.mark.parametrize(("fraction", "left"), [(1.0, 0), (0.5, 1), (0.0, 4)])
def test_the_overlap_fraction_is_the_speed_of_communication_beside_computing(
    fraction: float, left: int, tmp_path: Path
) -> None:
    """Half as fast: behind 6 ns of computing 3 ns of communication are hidden."""
    base = tmp_path / "own.toml"
    base.write_text(f"[device.H100-SXM]\noverlap_fraction = {fraction}\n")
    prices: Prices = {"aten.linear.default": 10, "aten.matmul.default": 6, "all_reduce": 4}
    assert ns(step(program_of(BESIDE, TP), prices, base=base)) == 10 + 6 + left


def test_zero_3_gathers_ahead_and_scatters_behind() -> None:
    """Exposed are the first gather of each pass and the last scatter."""
    prices: Prices = {"aten.add.Tensor": (10, 20), "all_gather": 4, "reduce_scatter": 6}
    found = step(program_of(LAYERS, DP, parameters=THREE, zero=3), prices)
    assert ns(found) == (4 + 3 * 10) + (4 + 3 * 20 + 6)
    assert waits(found) == {"gathers": 8, "reductions": 6}


def test_zero_3_gathers_two_layers_ahead_in_forward_and_one_in_backward() -> None:
    """Gathers that take longer than a layer run back to back; in backward one begins when the last has ended."""
    prices: Prices = {"aten.add.Tensor": (10, 20), "all_gather": 30, "reduce_scatter": 0}
    found = step(program_of(LAYERS, DP, parameters=THREE, zero=3), prices)
    assert ns(found) == (3 * 30 + 10) + (3 * 30 + 20)
    gathers = [(e.start_ns, e.end_ns) for e in found.events if e.track.stream == "all-gather"]
    assert gathers == [(0, 30), (30, 60), (60, 90), (100, 130), (130, 160), (160, 190)]


def test_gathers_and_scatters_at_the_same_time_share_their_link() -> None:
    """In backward 4 of the 10 ns of gathering b are left when the scatter of c begins: they take 8, and so on."""
    prices: Prices = {"aten.add.Tensor": (0, 6), "all_gather": 10, "reduce_scatter": 10}
    found = step(program_of(LAYERS, DP, parameters=THREE, zero=3), prices)
    spans = {
        stream: [(e.start_ns, e.end_ns) for e in found.events if e.track.stream == stream]
        for stream in ("all-gather", "reduce-scatter")
    }
    # gathers of a, b, c; then of c, of b beside the backward of c, of a beside that of b
    assert spans["all-gather"][:5] == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 54)]
    assert spans["reduce-scatter"][0] == (46, 66)  # behind b's gather comes a's


@pytest.mark.parametrize(("zero", "gathers", "scatters"), [(0, 0, 0), (1, 3, 3), (2, 3, 6), (3, 12, 6)])
def test_each_zero_level_moves_what_it_must(zero: int, gathers: int, scatters: int) -> None:
    """Of three layers and two microbatches: level 2 scatters every microbatch, level 3 gathers for every use."""
    prices: Prices = {"aten.add.Tensor": (10, 20), "all_gather": 1, "reduce_scatter": 1, "all_reduce": 1}
    found = step(program_of(LAYERS, DP, parameters=THREE, zero=zero, microbatches=2), prices)
    streams = [event.track.stream for event in found.events]
    assert (streams.count("all-gather"), streams.count("reduce-scatter")) == (gathers, scatters)
    assert streams.count("all-reduce") == (3 if zero == 0 else 0)


def test_copies_on_several_nodes_are_added_up_once_a_step() -> None:
    """HSDP: cut among two neighbours, gradients scattered every microbatch, summed among the nodes after the last."""
    four = LAYERS.replace("dp=2", "dp=4")
    prices: Prices = {"aten.add.Tensor": (10, 20), "all_gather": 1, "reduce_scatter": 1, "all_reduce": 1}
    program = program_of(four, Mesh((("dp", 4),)), parameters=THREE, zero=2, microbatches=2, inside=(2,))
    streams = [event.track.stream for event in step(program, prices, nodes=2).events]
    counts = [streams.count(stream) for stream in ("all-gather", "reduce-scatter", "all-reduce")]
    assert counts == [3, 6, 3]


def test_gradients_that_wait_for_the_end_of_the_step_are_added_up_in_one_buffer() -> None:
    program = program_of(BESIDE, TP, parameters={"w": (), "v": ()}, step_axes=("tp",))
    found = step(program, {"all_reduce": 5, "optimizer": (0, 7)})
    assert waits(found) == {"collectives": 5, "sums": 5} and ns(found) == 17


def test_recomputation_ends_before_the_last_product() -> None:
    """Backward needs what goes into the last product, not what it makes."""
    text = layers(
        "%3: f32[8,8]{dp:S(0)} = aten.add.Tensor(%0, %1.dp) {}", "%4: f32[8,8]{dp:S(0)} = aten.silu.default(%3) {}",
        "%2: f32[8,8]{dp:S(0)} = aten.linear.default(%4, %w) {}",
    )  # fmt: skip
    prices: Prices = {"aten.add.Tensor": (1, 2), "aten.silu.default": (10, 20), "aten.linear.default": (100, 200)}
    whole = step(program_of(text, DP, parameters=THREE), prices)
    again = step(program_of(text, DP, parameters=THREE, recompute={"layer": "full"}), prices)
    assert ns(again) - ns(whole) == 3 * (1 + 10)
    assert again.places[0].busy_s["recompute"] == pytest.approx(33e-9)


def test_selective_recomputation_runs_products_and_collectives_once() -> None:
    """The bias is the product's."""
    text = layers(
        "%3: f32[8,8]{dp:S(0)} = aten.linear.default(%0, %w) {}",
        "%4: f32[8,8]{dp:S(0)} = aten.add.Tensor(%3, %1.dp) {}",
        "%2: f32[8,8]{dp:S(0)} = aten.tanh.default(%4) {}",
    )  # fmt: skip
    prices: Prices = {"aten.add.Tensor": (1, 2), "aten.tanh.default": (10, 20), "aten.linear.default": (100, 200)}
    kinds = {
        how: step(program_of(text, DP, parameters=THREE, recompute={"layer": how}), prices).places[0].busy_s
        for how in ("full", "selective")
    }
    assert kinds["full"]["recompute"] == pytest.approx(3 * 110e-9)
    assert kinds["selective"]["recompute"] == pytest.approx(3 * 10e-9)


def test_time_is_all_accounted_for() -> None:
    prices: Prices = {"aten.add.Tensor": (10, 20), "all_gather": 7, "reduce_scatter": 9, "optimizer": (0, 3)}
    found = step(program_of(LAYERS, DP, parameters=THREE, zero=3, microbatches=2), prices)
    (account,) = found.places
    told = sum(account.busy_s.values()) + sum(account.waits_s.values()) + account.idle_s
    assert told == pytest.approx(found.step_s)


def test_a_cluster_of_another_size_is_refused() -> None:
    with pytest.raises(UsageError, match=r"mesh\(dp=2\) has 2 members but 1x4xH100-SXM has 4 devices"):
        simulate(program_of(LAYERS, DP), Cluster.parse("1x4xH100-SXM"), Known({}), optimizer="adamw")


def test_an_unknown_detail_is_refused() -> None:
    with pytest.raises(UsageError, match="detail='all': one of operations, calls, passes"):
        step(program_of(TWO, ONE), {}, detail="all")

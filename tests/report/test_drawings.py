"""The parts that pages are drawn of."""

from __future__ import annotations

import pytest

from autopar.cost_model.simulator import Event, Track
from autopar.report.density import LEVELS, Filled, binned, leaves
from autopar.report.matrix import SIDE, pictogram
from autopar.report.svg import Svg, element
from autopar.report.timeline import _disjoint
from autopar.report.tracks import BINS, time_axis, track
from tests.report.pages import Page

TRACK = Track(0, "compute")


def event(start: int, end: int, category: str = "forward") -> Event:
    return Event(TRACK, "e", start, end, category)


def held(drawing: Svg) -> float:
    """The share of a matrix that is filled."""
    found = [a for _, a in Page(drawing).elements if a.get("class") == "held"]
    frame = next(a for _, a in Page(drawing).elements if a.get("class") == "frame")
    whole = float(frame["width"]) * float(frame["height"])
    return sum(float(a["width"]) * float(a["height"]) for a in found) / whole


def test_text_and_attributes_are_escaped_and_markup_is_not():
    made = element("text", 'a < "b"', element("tspan", "c"), data_x='"<')
    assert made == '<text data-x="&quot;&lt;">a &lt; &quot;b&quot;<tspan>c</tspan></text>'


def test_numbers_are_no_longer_than_needed():
    assert element("rect", x=1.0, y=1 / 3, class_=None) == '<rect x="1" y="0.33"></rect>'


def test_events_with_others_inside_are_left_out():
    outer, first, second, later = event(0, 10), event(0, 4), event(4, 9), event(12, 13)
    assert list(leaves([outer, first, second, later])) == [first, second, later]
    assert list(leaves([])) == []


def test_a_bin_has_the_category_that_fills_most_of_it_and_how_full_it_is():
    events = [event(0, 20), event(20, 23, "backward"), event(30, 40, "backward")]
    assert binned(events, 0, 40, 4) == [
        Filled(first=0, last=2, category="forward", level=LEVELS),
        Filled(first=2, last=3, category="backward", level=1),
        Filled(first=3, last=4, category="backward", level=LEVELS),
    ]


def test_events_outside_the_window_fill_no_bin():
    assert binned([event(0, 10), event(50, 60)], 20, 40, 5) == []


def test_a_short_event_is_still_seen():
    assert binned([event(500, 501)], 0, 1000, 10) == [Filled(first=5, last=6, category="forward", level=1)]


def test_streams_together_are_drawn_without_overlap():
    found = _disjoint([event(0, 10), event(2, 5), event(8, 12)])
    assert [(e.start_ns, e.end_ns) for e in found] == [(0, 10), (10, 12)]


@pytest.mark.parametrize(
    ("choices", "share"),
    [
        ({"dp": "R", "tp": "R"}, 1.0),
        ({"dp": "R", "tp": "S(0)"}, 1 / 4),
        ({"dp": "S(1)", "tp": "S(0)"}, 1 / 8),
        ({"dp": "S(0)", "tp": "S(0)"}, 1 / 8),
        ({"dp": "R", "tp": "S(0)/3"}, 1 / 4),
        ({"dp": "R", "tp": "S(2)"}, 1.0),
    ],
)
def test_a_matrix_is_filled_as_far_as_one_device_holds_it(choices, share):
    drawing = pictogram((12, 12, 3), choices, {"dp": 2, "tp": 4}, {"dp": 1, "tp": 2})
    assert held(drawing) == pytest.approx(share, abs=0.01)


def test_a_factor_of_three_is_cut_in_each_of_its_parts():
    drawing = pictogram((12, 4), {"tp": "S(0)/3"}, {"tp": 2}, {"tp": 2})
    tops = [float(a["y"]) - 1 for _, a in Page(drawing).elements if a.get("class") == "held"]
    assert tops == pytest.approx([0, SIDE / 3, 2 * SIDE / 3])


def test_a_vector_is_narrow():
    assert 'width="10"' in pictogram((8,), {}, {}, {})


@pytest.mark.parametrize(
    ("length_ns", "texts"),
    [
        (23_400_000_000, ["0 s", "5 s", "10 s", "15 s", "20 s"]),
        (95_400_000, ["0 ms", "20 ms", "40 ms", "60 ms", "80 ms"]),
        (1_000, ["0 ns", "200 ns", "400 ns", "600 ns", "800 ns", "1000 ns"]),
    ],
)
def test_a_time_axis_has_round_moments_with_their_unit(length_ns, texts):
    assert Page(time_axis(length_ns)).sections[""] == "".join(texts)


def test_few_events_are_boxes_with_their_names_and_many_are_merged():
    few = track("t", [event(0, 10)], 0, 100, communication=False)
    assert "<title>e · 10 ns</title>" in few and 'class="k-forward"' in few
    many = track("t", [event(2 * i, 2 * i + 1) for i in range(10_000)], 0, 20_000, communication=True)
    assert f'viewBox="0 0 {BINS} 1"' in many and "k-communication" in many and len(many) < 20_000

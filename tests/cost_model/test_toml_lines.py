"""Keys of a TOML text and the lines they stand on."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from autopar.cost_model.toml_lines import KeyPath, key_lines, key_text, line_of

TEXT = """\
# comment with [brackets] and "quotes"
top = "a # b"
[device.V100-SXM2-32GB]
fp16_tflops = 125   # ] }
[op."aten.linear.default"]
flops = [
  1e8,   # first
  1e10,
]
text = '''
[not.a.table]
'''
a.b = { c = 1, "d.e" = [2, 3] }
[[nodes]]
count = 1
[[nodes]]
count = 2
[nodes.extra]
gpus = 8
"""


def paths(node: object, path: KeyPath = ()) -> set[KeyPath]:
    """Every path of a parsed document, by walking it."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    found: set[KeyPath] = set()
    for key, value in items:
        found |= {(*path, key)} | paths(value, (*path, key))
    return found


def test_every_key_has_the_line_it_stands_on() -> None:
    lines = key_lines(TEXT)
    assert lines["top",] == 2
    assert lines["device", "V100-SXM2-32GB", "fp16_tflops"] == 4
    assert lines["op", "aten.linear.default"] == 5
    assert lines["op", "aten.linear.default", "flops", 1] == 8
    assert lines["op", "aten.linear.default", "a", "b", "d.e", 1] == 13
    assert lines["nodes", 0, "count"] == 15
    assert lines["nodes", 1, "count"] == 17
    assert lines["nodes", 1, "extra", "gpus"] == 19


def test_the_scanner_finds_exactly_the_paths_that_the_parser_finds() -> None:
    assert set(key_lines(TEXT)) == paths(tomllib.loads(TEXT))


@given(
    st.lists(
        st.tuples(
            st.text(min_size=1, max_size=8).filter(
                lambda text: text.isprintable() and not set(text) & set('"\\')
            ),
            st.sampled_from(
                ["1", "[1, [2, {a = 3}]]", '"#=["', "'''x\n[y]\n'''", "{ b.c = '}' }", "1979-05-27"]
            ),
        ),
        unique_by=lambda pair: pair[0],
    )
)
def test_scanner_and_parser_agree_on_any_mixture_of_values(pairs: list[tuple[str, str]]) -> None:
    text = "".join(f'"{key}" = {value} # c\r\n' for key, value in pairs)
    assert set(key_lines(text)) == paths(tomllib.loads(text))


def test_an_absent_key_has_the_line_of_the_table_around_it() -> None:
    assert line_of(key_lines(TEXT), ("op", "aten.linear.default", "seconds")) == 5
    assert line_of(key_lines(TEXT), ("absent",)) is None


def test_a_path_is_shown_as_toml_writes_it() -> None:
    assert key_text(("op", "aten.linear.default", "flops", 1)) == 'op."aten.linear.default".flops[1]'

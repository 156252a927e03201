"""Cost-profile files: strict, laid over the built-in one, every mistake with its key and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autopar.cost_model import CostProfile
from autopar.ir.errors import FileFormatError, UsageError

EXAMPLE = """\
[device.MyChip]
bf16_tflops = 400
fp32_tflops = 50
memory_gb = 96
memory_tb_s = 3.2
intra = "mylink"
[link.mylink]
bandwidth_gb_s = 200
latency_us = 3
[efficiency.matmul]             # fraction of peak, by problem size; interpolated
flops = [1e8, 1e10, 1e12]
fraction = [0.2, 0.6, 0.8]
[op."aten.linear.default"]      # measured seconds win over the formula
"""


def test_the_example_of_the_interface_loads(write: Callable[[str], Path]) -> None:
    profile = CostProfile(write(EXAMPLE))
    assert profile.device("MyChip").bf16_tflops == 400.0
    assert profile.link("mylink").latency_us == 3.0


@pytest.mark.parametrize(
    ("text", "line", "key", "expected"),
    [
        ("\n[device.X]\nbf16_tflop = 4", 3, "device.X.bf16_tflop", "unknown key; did you mean bf16_tflops"),
        ("[devcie.X]\nfp32_tflops = 4", 1, "devcie", "unknown key; did you mean device"),
        ("[device.X]\nmemory_gib = 80", 2, "device.X.memory_gib", "did you mean memory_gb"),
        ("[device.X]\nfp32_tflops = 0", 2, "device.X.fp32_tflops", "is 0, expected a number greater than 0"),
        ("[device.X]\nfp32_tflops = -1.5", 2, "device.X.fp32_tflops", "is -1.5, expected a number greater"),
        ("[device.X]\nfp32_tflops = nan", 2, "device.X.fp32_tflops", "is nan, expected a finite number"),
        ("[device.X]\nfp32_tflops = inf", 2, "device.X.fp32_tflops", "is inf, expected a finite number"),
        ("[device.X]\nfp32_tflops = 1e999", 2, "device.X.fp32_tflops", "expected a finite number"),
        ('[device.X]\nfp32_tflops = "4"', 2, "device.X.fp32_tflops", 'is "4", expected a valid number'),
        ("[device.X]\nfp32_tflops = true", 2, "device.X.fp32_tflops", "is true, expected a valid number"),
        ("[device.X]\nnics_per_node = 1.5", 2, "device.X.nics_per_node", "expected a valid integer"),
        ("[device.X]\noverlap_fraction = 1.1", 2, "device.X.overlap_fraction", "less than or equal to 1"),
        ("[device]\nX = 3", 2, "device.X", "is 3, expected"),
        ('[device.X]\nintra = "nvlink9"', 2, "device.X.intra", "no link of the profile; did you mean nvlink"),
        ("[link.l]\nusable_fraction = 85", 2, "link.l.usable_fraction", "less than or equal to 1"),
        ("[link.l]\nlatency_us = 0.0", 2, "link.l.latency_us", "greater than 0"),
        ("[efficiency.matmul]\nflops = [1]", 1, "efficiency.matmul.fraction", "is missing"),
        ("[efficiency.c]\nflops = [1, 2]\nfraction = [1]", 1, "efficiency.c", "has 2 flops and 1 fraction"),
        ("[efficiency.c]\nflops = [2, 1]\nfraction = [1, 1]", 1, "efficiency.c", "flops that do not rise"),
        (
            "[efficiency.c]\nfraction = [1, 1]\nflops = [\n1,\n-2]",
            5,
            "efficiency.c.flops[1]",
            "is -2, expected",
        ),
        ('[op."a.b"]\nflops = [1]\nbytes = [1]\nseconds = [1]', 1, 'op."a.b"', "either flops or bytes"),
        ('[op."a.b"]\nflops = [1]\nseconds = [0]', 3, 'op."a.b".seconds[0]', "greater than 0"),
        ('[op.x]\ndevice = "H1000-SXM"\nflops=[1]\nseconds=[1]', 2, "op.x.device", "did you mean H100-SXM"),
        ('[optimizer.x]\nstate_dtype = "float32"', 2, "optimizer.x.state_dtype", 'is "float32", expected'),
        ("[device.X]\ndate = 3", 2, "device.X.date", "is 3, expected a valid string"),
        ("[memory]\nbudget_fraction = 0", 2, "memory.budget_fraction", "greater than 0"),
        ("[overlap]\nfraction = nan", 2, "overlap.fraction", "finite"),
    ],
)
def test_a_mistake_names_its_key_its_line_and_what_was_expected(
    write: Callable[[str], Path], text: str, line: int, key: str, expected: str
) -> None:
    path = write(text)
    with pytest.raises(FileFormatError) as caught:
        CostProfile(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line {line}: {key} ")
    assert expected in message
    assert caught.value.details == {"file": str(path), "key": key, "line": line}
    assert caught.value.exit_code == 6


@pytest.mark.parametrize("text", ["[device", "a = \n", "{}", "a = 1\na = 2"])
def test_what_is_not_toml_is_refused_with_the_line(write: Callable[[str], Path], text: str) -> None:
    with pytest.raises(
        FileFormatError, match=r"not a TOML file: .*line \d|not a TOML file: .*end of document"
    ):
        CostProfile(write(text))


def test_bytes_that_are_not_utf8_are_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(b"# fine\n\xff")
    with pytest.raises(FileFormatError, match="line 2: not UTF-8"):
        CostProfile(path)


def test_a_file_nested_too_deeply_is_refused(write: Callable[[str], Path]) -> None:
    with pytest.raises(FileFormatError, match=r"nested too deeply|not a TOML"):
        CostProfile(write("a = " + "[" * 5000 + "]" * 5000))


def test_an_oversized_file_is_refused(write: Callable[[str], Path]) -> None:
    with pytest.raises(FileFormatError, match="larger than"):
        CostProfile(write("#" * 1_000_001))


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        CostProfile(tmp_path / "absent.toml")


def test_a_layer_replaces_single_keys_and_keeps_the_others(write: Callable[[str], Path]) -> None:
    device = CostProfile(write("[device.H100-SXM]\nmemory_tb_s = 3")).device("H100-SXM")
    assert (device.memory_tb_s, device.bf16_tflops) == (3.0, 989.0)


def test_the_origin_of_a_number_is_the_layer_that_decides_it(write: Callable[[str], Path]) -> None:
    path = write("\n[device.H100-SXM]\nmemory_tb_s = 3")
    profile = CostProfile(path)
    assert profile.origin("device", "H100-SXM", "memory_tb_s") == f"{path}, line 3"
    assert profile.origin("device", "H100-SXM", "bf16_tflops").startswith("built-in hardware.toml, line ")


def test_the_hash_depends_on_numbers_and_not_on_layout(
    write: Callable[[str], Path], builtin: CostProfile
) -> None:
    first = CostProfile(write("[device.X]\nfp32_tflops = 4\nmemory_gb = 1")).sha256
    second = CostProfile(write("# other\n[device]\nX.memory_gb = 1.0\nX.fp32_tflops = 4.0")).sha256
    other = CostProfile(write("[device.X]\nfp32_tflops = 5\nmemory_gb = 1")).sha256
    assert first == second
    assert len({first, other, builtin.sha256}) == 3


def test_a_date_may_be_quoted_or_bare(write: Callable[[str], Path]) -> None:
    quoted = CostProfile(write('[device.X]\ndate = "2026-08-22"')).sha256
    assert CostProfile(write("[device.X]\ndate = 2026-08-22")).sha256 == quoted


def test_every_shipped_device_and_link_says_where_its_numbers_are_from(builtin: CostProfile) -> None:
    tables = [*builtin.data.device.values(), *builtin.data.link.values(), *builtin.data.optimizer.values()]
    assert all(table.source for table in tables)

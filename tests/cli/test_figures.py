"""``autopar cluster`` and ``autopar profile``: figures with their sources."""

from __future__ import annotations

import pytest

MINE = '[device.MyChip]\nfp32_tflops = 50\nmemory_gb = 96\nmemory_tb_s = 3.2\nsource = "sheet"\n'


@pytest.fixture
def mine(tmp_path):
    """A profile of the user's."""
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    return path


def words(text: str) -> str:
    """One space between words, lines as one."""
    return " ".join(text.split())


def test_a_cluster_is_shown_with_the_source_of_each_number(cli):
    result = cli("cluster", "show", "2x8xH100-SXM")
    assert (result.code, result.err) == (0, "")
    assert "H100-SXM bf16 989 TFLOPS hardware.toml:" in words(result.out)
    assert "no rate given: 8 x link ib_ndr" in words(result.out)


def test_without_a_spec_the_cluster_is_this_machine(cli, monkeypatch):
    monkeypatch.setattr("autopar.cli.machine.gpu_names", list)
    monkeypatch.setattr("autopar.cli.machine.usable_cores", lambda: 2)
    assert "cluster 1x2xCPU this machine" in words(cli("cluster", "show").out)


def test_a_cluster_as_json_has_the_same_rows(cli):
    document = cli("cluster", "show", "1x2xCPU", "--json").document
    assert document["world_size"] == 2
    assert document["cluster"]["nodes"] == [{"count": 1, "gpus": 2, "device": "CPU", "intra": None}]
    assert {"what": "devices", "value": "2", "source": "1 nodes"} in document["rows"]


def test_a_cluster_is_priced_by_the_profile_that_is_given(cli, mine):
    result = cli("cluster", "show", "1x1xMyChip", "--profile", mine)
    assert "MyChip fp32 50 TFLOPS mine.toml:2, source sheet" in words(result.out)


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        ("2x8xH100", 2, "did you mean H100-SXM"),
        ("2x8", 2, "is not a cluster; write it as NODESxGPUSxDEVICE[@RATE]"),
        ("absent.toml", 2, "cannot read absent.toml"),
    ],
)
def test_a_wrong_cluster_is_a_usage_error(cli, spec, code, message):
    result = cli("cluster", "show", spec)
    assert (result.code, result.out) == (code, "")
    assert message in result.err


def test_profiles_with_a_name_are_listed(cli):
    assert "builtin autopar" in words(cli("profile", "list").out)
    assert cli("profile", "list", "--json").document[0] == {"name": "builtin", "source": "autopar"}


def test_the_builtin_profile_is_shown_with_sources(cli):
    shown = words(cli("profile", "show").out)
    assert shown.startswith("Cost profile builtin sha256 ")
    assert "nvlink4 450 0.6 hardware.toml:" in shown
    assert "adamw 2 parameter memory.toml:" in shown


def test_a_file_is_shown_over_the_builtin_figures(cli, mine):
    shown = words(cli("profile", "show", mine).out)
    assert "MyChip 50 96 GB 3.2 mine.toml:2 source sheet" in shown
    assert "H100-SXM" in shown


def test_measured_curves_are_shown_where_there_are_any(cli, mine):
    mine.write_text("[efficiency.matmul]\nflops = [1e8, 1e10]\nfraction = [0.2, 0.6]\n")
    assert "efficiency matmul all all mine.toml:2" in words(cli("profile", "show", mine).out)
    assert "Measured" not in cli("profile", "show").out


@pytest.mark.parametrize("columns", [80, 120])
def test_figures_fit_the_terminal(cli, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in (("profile", "show"), ("cluster", "show", "2x8xH100-SXM")):
        assert max(len(line) for line in cli(*command).out.splitlines()) <= columns


def test_a_profile_as_json_has_its_numbers(cli, mine):
    document = cli("profile", "show", mine, "--json").document
    assert document["device"]["MyChip"]["fp32_tflops"] == 50
    assert document["files"][-1] == str(mine)


def test_a_good_profile_is_valid(cli, mine):
    result = cli("profile", "validate", mine)
    assert result.code == 0
    assert result.out.startswith(f"{mine}: valid, sha256 ")
    assert cli("profile", "validate", mine, "--json").document["valid"] is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[device.X]\nbf16_tflop = 1\n",
            "line 2: device.X.bf16_tflop is an unknown key; did you mean bf16_tflops",
        ),
        (
            "[device.X]\nmemory_gb = -1\n",
            "line 2: device.X.memory_gb is -1, expected a number greater than 0",
        ),
        ("[device.X]\nmemory_gb = nan\n", "line 2: device.X.memory_gb is nan, expected a finite number"),
        ('[device.X]\nintra = "nolink"\n', 'line 2: device.X.intra is "nolink", which is no link'),
        ("[device", "not a TOML file"),
    ],
)
def test_a_mistake_in_a_profile_is_named_with_key_and_line(cli, mine, text, message):
    mine.write_text(text)
    result = cli("profile", "validate", mine)
    assert (result.code, result.out) == (6, "")
    assert message in result.err


def test_a_mistake_as_json_has_its_place(cli, mine):
    mine.write_text("[device.X]\nmemory_gb = -1\n")
    error = cli("profile", "validate", mine, "--json").document["error"]
    assert error["code"] == "FileFormatError"
    assert error["details"] == {"file": str(mine), "key": "device.X.memory_gb", "line": 2}


def test_a_profile_that_is_not_there_is_a_file_error(cli):
    assert cli("profile", "validate", "absent.toml").code == 6


def test_an_unknown_profile_is_a_usage_error(cli):
    result = cli("profile", "show", "bultin")
    assert (result.code, "did you mean builtin" in result.err) == (2, True)

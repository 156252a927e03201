"""A cost profile as a file, an object or another package's entry point decides what the plan is."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import autopar
from autopar import Plan, errors
from autopar.cli import main
from tests.api import networks

ROOT = Path(__file__).parents[2]
PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "our-cluster-figures"
version = "1.0"
[project.entry-points."autopar.cost_profiles"]
our-cluster = "our_cluster_figures:OurCluster"
"""
PACKAGE = """
from pathlib import Path
from tests.api.networks import Slower

class OurCluster(Slower):
    def __init__(self) -> None:
        super().__init__(Path(__file__).with_name("our_figures.toml"))
"""


def planned(profile: Any, **options: Any) -> Plan:
    model, inputs = networks.model()
    return autopar.plan(model, inputs, cluster=networks.CLUSTER, profile=profile, num_microbatches=1, **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Profiles by how much slower the network between the nodes is."""
    folder = tmp_path_factory.mktemp("profiles")
    return {slower: networks.write(folder / f"slower{slower}.toml", slower=slower) for slower in (1, 100)}


@pytest.fixture(scope="module")
def on_quick_network(files: dict[int, Path]) -> Plan:
    return planned(files[1])


def test_on_a_quick_network_one_axis_crosses_nodes(on_quick_network):
    """What the next tests must change: tensors, or tensors and the batch, are split over all devices alike."""
    assert on_quick_network.mesh in ({"tp": 4}, {"mix": 4})


def test_a_file_with_a_slow_network_keeps_tensor_parallelism_inside_the_node(files, on_quick_network):
    """A TOML overlay: one link a hundred times slower."""
    plan = planned(files[100])
    assert plan.mesh["tp"] == 2
    assert plan.axes[-1] == "tp"
    assert plan.objective_s > on_quick_network.objective_s
    assert plan.profile.sha256 != on_quick_network.profile.sha256


def test_an_object_with_slow_collectives_keeps_tensor_parallelism_inside_the_node(files, on_quick_network):
    """A Python object: ``collective_s`` answers; the same factor of 1 gives the plan of the file."""
    same, slow = planned(networks.AsItIs(files[1])), planned(networks.Slower(files[1]))
    assert (same.mesh, same.objective_s) == (on_quick_network.mesh, on_quick_network.objective_s)
    assert (slow.mesh["tp"], slow.axes[-1]) == (2, "tp")
    assert slow.objective_s == pytest.approx(planned(files[100]).objective_s, rel=1e-3)
    assert slow.profile.name == "Slower"


@pytest.mark.parametrize("form", ["file", "object"])
def test_slower_products_raise_the_objective_by_their_seconds(files, tmp_path, on_quick_network, form):
    """A hundredth of a second each way for 2 layers of 4 products and the head."""
    if form == "object":
        profile: Any = networks.SlowProducts(files[1])
    else:
        profile = tmp_path / "slow.toml"
        measured = '[op."{}"]\nflops = [1e3]\nseconds = [0.01]\n'
        targets = ("aten.linear.default", "aten.addmm.default", "aten.matmul.default")
        profile.write_text(files[1].read_text() + "".join(map(measured.format, targets)))
    plan = planned(profile, mesh={"tp": 4})
    products = 2 * (4 * 2 + 1)
    assert plan.objective_s - on_quick_network.objective_s > 0.9 * 0.01 * products
    assert plan.step_time_s.compute > 0.9 * 0.01 * products


@pytest.mark.slow
def test_an_installed_package_registers_a_profile(files, tmp_path):
    """Installed by pip, named on the command line, and named again by ``show``."""
    source, installed = tmp_path / "source", tmp_path / "site"
    (source / "our_cluster_figures").mkdir(parents=True)
    (source / "pyproject.toml").write_text(PYPROJECT + '[tool.setuptools.package-data]\n"*" = ["*.toml"]\n')
    (source / "our_cluster_figures" / "__init__.py").write_text(PACKAGE)
    networks.write(source / "our_cluster_figures" / "our_figures.toml")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(installed), str(source)], check=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (installed, ROOT)))}

    def autopar_(*words: object) -> str:
        command = [sys.executable, "-m", "autopar", *map(str, words)]
        run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
        return run.stdout

    assert "our-cluster" in autopar_("profile", "list")
    words = ["plan", "tests.api.networks:model", "--cluster", networks.CLUSTER, "--profile", "our-cluster"]
    document = json.loads(autopar_(*words, "--num-microbatches", 1, "-o", "plan.json", "--json"))
    assert document["mesh"]["tp"] == 2
    assert document["profile"]["name"] == "OurCluster"
    assert "OurCluster" in autopar_("show", tmp_path / "plan.json")


def test_show_names_the_profile(files, on_quick_network, tmp_path, capsys):
    """Beside the seconds that it decided."""
    on_quick_network.save(tmp_path / "plan.json")
    assert main(["show", str(tmp_path / "plan.json")]) == 0
    assert "slower1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("[link.outside]\nbandwith_gb_s = 4", "line 2: link.outside.bandwith_gb_s", "bandwidth_gb_s"),
        ("\n[link.outside]\nbandwidth_gb_s = 0", "line 3: link.outside.bandwidth_gb_s", "greater than 0"),
        ("[link.outside]\nlatency_us = -1", "line 2: link.outside.latency_us", "greater than 0"),
        ("[device.Node]\nmemory_tb_s = nan", "line 2: device.Node.memory_tb_s", "finite"),
        ("[device.Node]\nmemory_gb = inf", "line 2: device.Node.memory_gb", "finite"),
        ("[links.outside]\nlatency_us = 1", "line 1: links", "link"),
        ("[device.Node", "", "not a TOML file"),
    ],
    ids=["unknown key", "zero rate", "negative", "nan", "infinity", "unknown table", "no TOML"],
)
def test_a_bad_figure_ends_with_6_and_names_key_and_line(tmp_path, capsys, text, where, what):
    """Before the model is built."""
    path = tmp_path / "bad.toml"
    path.write_text(text)
    assert main(["plan", "zoo:gpt2", "--cluster", networks.CLUSTER, "--profile", str(path)]) == 6
    err = capsys.readouterr().err
    assert err.startswith("FileFormatError: ")
    assert f"{path}, {where}" in err.replace("\n  ", " ") if where else str(path) in err
    assert what in err
    assert main(["profile", "validate", str(path)]) == 6


@pytest.mark.parametrize(
    ("line", "key"),
    [("fp32_tflops = 100", "fp32_tflops"), ("memory_tb_s = 2", "memory_tb_s"), ("memory_gb = 16", "memory_gb"),
     ("latency_us = 0.1", "latency_us")],
)  # fmt: skip
def test_a_missing_number_ends_with_6_and_is_named(tmp_path, capsys, line, key):
    """There is no default for what a plan needs, and the message says where to add it."""
    path = networks.write(tmp_path / "partial.toml")
    path.write_text(path.read_text().replace(line, "", 1))
    words = ["plan", "tests.api.networks:model", "--cluster", networks.CLUSTER, "--profile", str(path)]
    assert main(words) == 6
    err = " ".join(capsys.readouterr().err.split())
    table = "link.inside" if key == "latency_us" else "device.Node"
    assert f"{table} has no {key}" in err
    assert f"add it under [{table}]" in err


def test_a_hook_that_returns_no_seconds_is_refused_by_name(files):
    class Broken(networks.Slower):
        factor = math.nan

    with pytest.raises(errors.UsageError, match=r"Broken\.collective_s returned nan for all_\w+ over tp"):
        planned(Broken(files[1]), mesh={"tp": 4})

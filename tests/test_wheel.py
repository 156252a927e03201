"""The wheel holds real files under one name, and works where the source tree is not."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("ir", "cost_model", "passes", "runtime")
SHIPPED = {".py", ".toml", ".html", ".css", ".j2", ".js", ".json", ".typed"}

PROBE = """
import importlib, json
names = ["autopar", *(f"autopar.{layer}" for layer in %r)]
print(json.dumps({name: importlib.import_module(name).__file__ for name in names}))
"""


def run(*command: object, cwd: Path) -> str:
    """Run a command away from the source tree and return its standard output; fail with all that it said."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree, so that the build leaves nothing behind in it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("autopar", *LAYERS):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_source_file_under_one_name(wheel):
    """The links of the source tree become real files, none is forgotten, and nothing else is top-level."""
    with zipfile.ZipFile(wheel) as archive:
        entries = {info.filename: info for info in archive.infolist() if not info.is_dir()}
    tops = {name.split("/")[0] for name in entries}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"autopar"}

    folders = {"autopar": ROOT / "autopar", **{f"autopar/{layer}": ROOT / layer for layer in LAYERS}}
    expected = {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix in SHIPPED
    }
    assert {name for name in entries if name.startswith("autopar/")} == expected
    links = [name for name, info in entries.items() if (info.external_attr >> 28) == 0o12]
    assert not links


def test_the_installed_wheel_imports_without_the_source_tree(wheel, tmp_path):
    """In a clean environment that sees our dependencies, `autopar` and each layer come from the wheel."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", "--no-index", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=tmp_path)
    (site,) = home.glob("lib/python*/site-packages")
    # A path line adds the folder but runs none of its .pth files: the editable install stays out of sight.
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in sorted(dependencies)))

    files = json.loads(run(python, "-I", "-c", PROBE % (LAYERS,), cwd=tmp_path))
    assert set(files) == {"autopar", *(f"autopar.{layer}" for layer in LAYERS)}
    assert all(Path(file).is_relative_to(site) for file in files.values()), files
    assert (home / "bin" / "autopar").exists()

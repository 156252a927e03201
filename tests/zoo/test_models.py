"""What a MODEL stands for."""

from __future__ import annotations

import itertools
import json
import sys

import pytest

from autopar.ir.errors import UsageError
from autopar.models import resolve

NAMES = (f"users_models_{number}" for number in itertools.count())
TINY = """
import torch
def build(batch_size=2, layers=1):
    return torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(layers)]), (torch.ones(batch_size, 4),)
def wrong(): return 3
def alone(): return (torch.nn.Linear(1, 1),)
def fails(): raise ValueError("bad size")
def anything(**sizes): return torch.nn.Linear(len(sizes), 1), {"input": torch.ones(1)}
value = 3
class Zoo:
    build = staticmethod(build)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's in the current folder."""
    name = next(NAMES)
    (tmp_path / f"{name}.py").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_zoo_names_a_model_of_the_zoo():
    found = resolve("zoo:gpt2", batch_size=2, seq_len=8, layers=1)
    assert (found.name, type(found.model).__name__) == ("zoo:gpt2", "GPT2LMHeadModel")


def test_hf_names_a_configuration_and_not_the_folder_it_is_in(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 8, "n_head": 2}))
    names = {resolve(f"hf:{path}", layers=1).name for path in (folder, folder / "config.json")}
    assert names == {"hf:tiny"}


def test_a_function_in_the_current_folder_is_found(module):
    found = resolve(f"{module}:build")
    assert (found.name, len(found.example_inputs)) == (f"{module}:build", 1)


def test_a_function_may_be_inside_a_class(module):
    assert len(list(resolve(f"{module}:Zoo.build", layers=2).model.children())) == 2


def test_sizes_are_passed_to_a_function_that_takes_them(module):
    found = resolve(f"{module}:build", batch_size=6, layers=3)
    assert isinstance(found.example_inputs, tuple)
    assert (len(list(found.model.children())), len(found.example_inputs[0])) == (3, 6)


def test_a_function_of_any_keywords_gets_the_sizes_that_were_given(module):
    assert resolve(f"{module}:anything", seq_len=1, layers=1).model.in_features == 2


def test_a_size_that_the_function_does_not_take_is_refused(module):
    with pytest.raises(UsageError, match="takes no seq_len; leave out --seq-len or add the parameter"):
        resolve(f"{module}:build", seq_len=4)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("wrong", "returned int; expected"),
        ("alone", "returned tuple of Linear; expected"),
        ("absent", "has no absent"),
        ("value", "is int, expected a function"),
        ("fails", r"failed: ValueError: bad size\n  at users_models_\d+.py, line 7, in fails"),
    ],
)
def test_a_function_that_gives_no_model_is_a_usage_error(module, function, message):
    with pytest.raises(UsageError, match=message):
        resolve(f"{module}:{function}")


def test_a_module_that_does_not_exist_is_a_usage_error():
    with pytest.raises(UsageError, match="no_such_module:f cannot be imported: ModuleNotFoundError"):
        resolve("no_such_module:f")


@pytest.mark.parametrize("spec", ["gpt2", "zoo:", ":f", "", "model.py"])
def test_what_is_not_a_model_is_answered_with_the_three_forms(spec):
    with pytest.raises(UsageError, match=r"zoo:NAME, hf:PATH_OR_NAME, or package.module:function"):
        resolve(spec)


def test_without_transformers_the_zoo_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'autopar\[hf\]'"):
        resolve("zoo:gpt2")

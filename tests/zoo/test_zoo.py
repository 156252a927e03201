"""The zoo holds published models, exactly."""

from __future__ import annotations

from typing import Any

import pytest

from autopar.ir.errors import UsageError
from autopar.zoo import ENTRIES, find

PUBLISHED = {
    "gpt2": 124_439_808,
    "bert-large": 335_174_458,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
}


@pytest.fixture(scope="module", params=list(ENTRIES))
def name(request):
    """Each model of the zoo."""
    return request.param


@pytest.fixture(scope="module")
def built(name):
    """Each model with its example inputs, of default sizes."""
    return ENTRIES[name].build()


def test_every_model_has_its_published_number_of_parameters(name, built):
    model, _ = built
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[name]


def test_nothing_of_a_model_is_in_memory(built):
    model, inputs = built
    tensors = [*model.parameters(), *model.buffers(), *inputs.values()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_no_model_has_dropout(built):
    """Sharded programs do not run it yet."""
    model, _ = built
    assert {module.p for module in model.modules() if type(module).__name__ == "Dropout"} <= {0.0}
    numbers = [
        vars(module).get("dropout_prob", vars(module).get("attention_dropout")) for module in model.modules()
    ]
    assert {number for number in numbers if isinstance(number, float)} <= {0.0}


def test_models_are_in_training_mode(built):
    model, _ = built
    assert model.training


def test_inputs_have_the_default_global_sizes(name, built):
    _, inputs = built
    entry = ENTRIES[name]
    assert {tuple(value.shape) for value in inputs.values()} == {(entry.batch_size, entry.seq_len)}
    assert {"input_ids", "labels"} <= set(inputs)


def test_only_gpt2_and_bert_tie_their_embeddings():
    models: dict[str, Any] = {name: entry.build(layers=1)[0] for name, entry in ENTRIES.items()}
    tied = {name for name, model in models.items() if model.config.tie_word_embeddings}
    assert tied == {"gpt2", "bert-large"}


def test_bert_is_given_an_attention_mask():
    assert list(find("bert-large").build(layers=1)[1]) == ["input_ids", "attention_mask", "labels"]


def test_sizes_may_be_chosen():
    model: Any
    model, inputs = find("llama3-8b").build(batch_size=3, seq_len=16, layers=2)
    assert len(model.model.layers) == 2
    assert inputs["labels"].shape == (3, 16)


def test_the_largest_model_is_built_without_memory():
    model, _ = find("llama3-70b").build()
    assert {value.device.type for value in model.parameters()} == {"meta"}


@pytest.mark.parametrize("size", ["batch_size", "seq_len", "layers"])
def test_a_size_of_zero_names_the_option(size):
    with pytest.raises(UsageError, match=f"gpt2: --{size.replace('_', '-')} is 0"):
        find("gpt2").build(**{size: 0})


def test_a_sequence_longer_than_the_model_is_refused():
    with pytest.raises(UsageError, match="--seq-len is 1025, but the model has 1024 positions"):
        find("gpt2").build(seq_len=1025)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match=r"no model 'lama3-8b'; did you mean llama3-8b"):
        find("lama3-8b")

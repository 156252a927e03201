"""Models from a transformers configuration: offline, on meta."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autopar.ir.errors import UsageError
from autopar.zoo.hf import architecture, build_hf
from autopar.zoo.reduce import reduced

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
BERT = {
    "model_type": "bert",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def built(source: str | Path, **sizes: int) -> tuple[Any, Any]:
    """The model and its inputs."""
    return build_hf(str(source), **sizes)


@pytest.fixture
def config(tmp_path):
    """Write a configuration and return the path of its file."""

    def _config(**changed):
        path = tmp_path / "tiny" / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(changed))
        return path

    return _config


def test_a_configuration_file_is_built_on_meta_without_weights(config):
    model, inputs = built(config(**LLAMA))
    assert type(model).__name__ == "LlamaForCausalLM"
    assert {tensor.device.type for tensor in (*model.parameters(), *inputs.values())} == {"meta"}


def test_a_folder_stands_for_its_configuration(config):
    model, _ = built(config(**LLAMA).parent)
    assert model.config.hidden_size == 32


def test_without_architectures_an_encoder_becomes_a_masked_language_model(config):
    model, inputs = built(config(**BERT))
    assert type(model).__name__ == "BertForMaskedLM"
    assert list(inputs) == ["input_ids", "attention_mask", "labels"]


def test_without_architectures_a_decoder_becomes_a_causal_language_model(config):
    model, inputs = built(config(**{key: LLAMA[key] for key in LLAMA if key != "architectures"}))
    assert type(model).__name__ == "LlamaForCausalLM"
    assert list(inputs) == ["input_ids", "labels"]


def test_gpt2_counts_as_causal_and_its_depth_has_another_name(config):
    path = config(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_layer=6, n_embd=32, n_head=4)
    model, _ = built(path, layers=2)
    assert len(model.transformer.h) == 2


def test_sizes_may_be_chosen(config):
    model, inputs = built(config(**LLAMA), batch_size=3, seq_len=16, layers=2)
    assert (len(model.model.layers), tuple(inputs["input_ids"].shape)) == (2, (3, 16))


def test_lists_of_one_item_a_layer_follow_the_depth(config):
    kinds = ["sliding_attention", "full_attention"] * 2
    changed = LLAMA | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "layer_types": kinds}
    model, _ = built(config(**changed), layers=3)
    assert model.config.layer_types == [*kinds[:2], kinds[0]]


def test_the_default_sequence_fits_a_learned_table_of_positions(config):
    assert built(config(**BERT))[1]["labels"].shape == (8, 64)


def test_a_sequence_longer_than_a_learned_table_is_refused(config):
    with pytest.raises(UsageError, match="--seq-len is 65, but the model has 64 positions"):
        built(config(**BERT), seq_len=65)


def test_a_rotary_model_may_go_beyond_its_positions(config):
    assert built(config(**LLAMA), seq_len=128)[1]["labels"].shape == (8, 128)


@pytest.mark.parametrize(
    "changed",
    [
        {"model_type": "vit", "architectures": ["ViTModel"]},
        {"model_type": "vit_mae"},
        LLAMA | {"architectures": ["os.system"]},
        LLAMA | {"architectures": ["AbsentForCausalLM"]},
    ],
)
def test_a_model_of_another_kind_points_to_the_function_form(config, changed):
    with pytest.raises(UsageError, match="pictures; write a function"):
        built(config(**changed))


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"model_type": "t5", "num_layers": 1}, ["input_ids", "attention_mask", "labels"]),
        ({"model_type": "vit", "architectures": ["ViTForImageClassification"]}, ["pixel_values", "labels"]),
        ({"model_type": "whisper", "encoder_layers": 1, "decoder_layers": 1}, ["input_features", "labels"]),
    ],
)
def test_inputs_follow_the_kind_of_model(config, changed, names):
    assert list(built(config(**changed))[1]) == names


def test_a_missing_file_is_named():
    with pytest.raises(UsageError, match=r"hf:./absent.json: no such file or folder"):
        built("./absent.json")


def test_a_name_that_the_cache_does_not_have_is_never_downloaded(monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("opened a connection"))
    with pytest.raises(UsageError, match="no usable configuration"):
        built("nobody/absent")


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "no-such-type"}', "{}"])
def test_a_broken_configuration_is_a_usage_error(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="no usable configuration"):
        built(path)


def test_a_depth_of_zero_is_refused(config):
    with pytest.raises(UsageError, match="--layers is 0"):
        built(config(**LLAMA), layers=0)


def test_a_mixture_whose_configuration_names_no_number_of_chosen_experts_is_reduced(config):
    """Switch sends each token to one."""
    path = config(
        model_type="switch_transformers", num_experts=64, num_layers=2, num_decoder_layers=2, num_heads=8,
        decoder_start_token_id=0, pad_token_id=0,
    )
    made = reduced(architecture(str(path)))
    assert made.config.num_experts == 16
    assert made.build("cpu")(**made.draw(2, 8, 0)).loss.isfinite()

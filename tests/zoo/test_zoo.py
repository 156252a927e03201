"""The zoo holds published models, exactly."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autopar.ir.errors import UsageError
from autopar.zoo import ENTRIES, find
from autopar.zoo.reduce import reduced

PUBLISHED = {
    "gpt2": 124_439_808,
    "bert-large": 335_174_458,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "t5-large": 737_668_096,
    "vit-large": 304_326_632,
    "whisper-large": 1_543_304_960,
    "resnet50-100k": 228_408_032,
    "m6-10b": 10_159_734_784,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "deepseek-v3": 671_026_404_352,
    "m6-moe-100b": 103_215_343_616,
    "m6-moe-1t": 1_002_753_566_720,
    "m6-moe-10t": 10_050_951_194_624,
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


@pytest.mark.parametrize(("name", "billions"), [("m6-moe-100b", 103.1), ("m6-moe-1t", 1003), ("m6-moe-10t", 10050)])
def test_the_experts_of_m6_are_what_was_published(name, billions):
    """Layers · experts · 2 · 1024 · their width; what is around them is our own."""
    model, _ = find(name).build()
    experts = sum(p.numel() for key, p in model.named_parameters() if key.endswith((".moe.up", ".moe.down")))
    assert experts / 1e9 == pytest.approx(billions, rel=5e-4)


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
    assert {len(value) for value in inputs.values()} == {entry.batch_size}
    assert entry.seq_len is None or inputs["labels"].shape == (entry.batch_size, entry.seq_len)


def test_embeddings_are_tied_as_published():
    language = [entry for entry in ENTRIES.values() if entry.seq_len is not None]
    models: dict[str, Any] = {entry.name: entry.build(layers=1)[0] for entry in language}
    tied = {name for name, model in models.items() if model.config.tie_word_embeddings}
    m6 = {name for name in ENTRIES if name.startswith("m6")}
    assert tied == {"gpt2", "bert-large", "t5-large", "whisper-large"} | m6


def test_a_model_of_pictures_has_no_sequence():
    with pytest.raises(UsageError, match="leave out --seq-len"):
        find("vit-large").build(seq_len=8)


def test_a_reduced_model_divides_as_the_whole_one(name):
    """Same class, heads in the same groups, an odd vocabulary stays odd; small enough for a laptop."""
    whole, small = ENTRIES[name].architecture().config, reduced(ENTRIES[name].architecture()).config
    model = reduced(ENTRIES[name].architecture()).build()
    assert sum(parameter.numel() for parameter in model.parameters()) < 20_000_000
    for key in ("vocab_size", "num_labels", "num_attention_heads", "num_key_value_heads"):
        if isinstance(getattr(whole, key, None), int):
            assert math.gcd(getattr(small, key), 4) == math.gcd(getattr(whole, key), 4), key
    if hasattr(whole, "num_key_value_heads"):
        groups = [config.num_attention_heads // config.num_key_value_heads for config in (whole, small)]
        assert groups[0] == groups[1]


def test_a_reduced_model_computes_a_loss(name):
    if name in ("llama3-70b", "llama3-405b"):
        pytest.skip("as llama3-8b")
    made = reduced(ENTRIES[name].architecture())
    assert made.build("cpu")(**made.draw(2, 8, 0)).loss.isfinite()


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

"""A model from a transformers configuration: built on meta, offline, weights never looked at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopar.ir.errors import UsageError
from autopar.zoo.architecture import Architecture
from autopar.zoo.kinds import Inputs, check_sizes
from autopar.zoo.reduce import POSITIONS, set_layers

if TYPE_CHECKING:
    from torch import nn

DEFAULT_BATCH_SIZE = 8
DEFAULT_SEQ_LEN = 1024

_KIND_BY_SUFFIX = {
    "ForCausalLM": "causal", "LMHeadModel": "causal", "ForMaskedLM": "masked", "ForImageClassification": "image",
    "ForConditionalGeneration": "translation", "WithLMHeadModel": "translation",
}  # fmt: skip


def build_hf(
    source: str, *, batch_size: int | None = None, seq_len: int | None = None, layers: int | None = None
) -> tuple[nn.Module, Inputs]:
    """The model that ``source`` configures, and its example inputs, on meta.

    ``source``: a ``config.json``, a folder that holds one, or a name in the local Hugging Face cache. The
    class is the first of ``architectures``, else the causal or masked language model of the model type.
    Raises ``UsageError`` where there is no such configuration or the model is of another kind.
    """
    made = architecture(source, layers)
    longest = _longest(made.config)
    if seq_len is not None and made.kind == "image":
        raise UsageError(f"{source}: a model of pictures has no sequence length; leave out --seq-len")
    seq_len = min(DEFAULT_SEQ_LEN, longest or DEFAULT_SEQ_LEN) if seq_len is None else seq_len
    batch_size = DEFAULT_BATCH_SIZE if batch_size is None else batch_size
    check_sizes(source, {"batch-size": batch_size, "seq-len": seq_len}, longest=longest)
    return made.build(), made.example(batch_size, seq_len)


def architecture(source: str, layers: int | None = None) -> Architecture:
    """The class and configuration that ``source`` stands for. Raises ``UsageError``."""
    config = _read_config(source)
    if layers is not None:
        set_layers(config, f"hf:{source}", layers)
    model_class, kind = _model_class(config, source)
    return Architecture(model_class=model_class, config=config, kind=kind)


def _read_config(source: str) -> Any:
    from transformers import AutoConfig

    if (source.endswith(".json") or source.startswith((".", "/", "~"))) and not Path(source).exists():
        raise UsageError(f"hf:{source}: no such file or folder", details={"path": source})
    try:
        return AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"hf:{source}: no usable configuration: {reason}\n"
            f"  give a config.json, a folder that holds one, or a name that the local cache has "
            f"(nothing is downloaded)",
            details={"source": source, "reason": reason},
        ) from error


def _longest(config: Any) -> int | None:
    """Positions of a learned table; None for rotary models, which have no such table."""
    if getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None):
        return None
    found = (getattr(config, key, None) for key in POSITIONS)
    return next((value for value in found if isinstance(value, int) and value > 0), None)


def _model_class(config: Any, source: str) -> tuple[Any, str]:
    """The class to build and its kind, a key of ``kinds.KINDS``."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    if config.architectures:
        name = config.architectures[0]
    elif config.is_encoder_decoder:
        speech = auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.get(config.model_type)
        name = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, speech)
    else:
        causal = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
        name = auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.get(config.model_type, causal)
    kind = next((kind for suffix, kind in _KIND_BY_SUFFIX.items() if name and name.endswith(suffix)), None)
    if kind == "translation" and hasattr(config, "num_mel_bins"):
        kind = "speech"
    elif kind == "translation" and not config.is_encoder_decoder:
        kind = None
    if name is None or kind is None or not hasattr(transformers, name):
        raise UsageError(
            f"hf:{source}: {name or config.model_type} is not a language model, a translator or a classifier of "
            f"pictures; write a function that returns (model, example_inputs) and give it as package.module:function",
            details={"source": source, "architecture": name, "model_type": config.model_type},
        )
    return getattr(transformers, name), kind

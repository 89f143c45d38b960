"""Reads a model's config.json: context length, vocabulary size, and the size of its KV cache.

Vision models have the values of their language model in text_config. The sizes are estimates for loading; the actual
size of the cache is measured afterwards.
"""

from __future__ import annotations

from pathlib import Path

from ..types import Json
from ..util import files
from . import model_file

CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "seq_len", "seq_length", "n_ctx")
"""The fields that may hold the context length; OVMS also reads sliding_window, which does not limit it."""
KEY_BYTES = {"u4": 0.75, "u8": 1.25, "f16": 2, "bf16": 2, "f32": 4}
VALUE_BYTES = {"u4": (0.5, 8), "u8": (1, 8), "f16": (2, 0), "bf16": (2, 0), "f32": (4, 0)}
"""The size in bytes of a key per element of a head, and of a value per element and additionally per head, by precision.
Scales are included: a key has one per channel of a block, a value one per token (the CPU plugin's inputs of
PagedAttention)."""

KEYLESS_LAYERS = ("conv", "linear_attention", "mamba", "mlp", "moe")
"""The values of layer_types for layers without keys and values: layers that keep a state of fixed size per sequence,
and feed-forward networks that are layers of their own."""


def read(model_dir: Path) -> Json:
    """Returns the content of config.json, with the fields of text_config merged over it; {} if there is none.

    A single-file model has the same fields inside. Raises StartError if such a model cannot be served.
    """
    if (file := model_file.of(model_dir)) is not None:
        return file.config()
    return flat(files.read_object(model_dir / "config.json"))


def flat(config: Json) -> Json:
    """Returns a config.json with the fields of text_config, which omni models nest deeper, merged over it."""
    thinker = config.get("thinker_config")
    inner = (thinker if isinstance(thinker, dict) else config).get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


PROCESSORS = {"image": "preprocessor_config.json", "video": "video_preprocessor_config.json"}


def processor(model_dir: Path, media: str) -> Json:
    """Returns the settings of a model's processor of images or videos, a key of PROCESSORS.

    They are in a separate file, or in processor_config.json, where transformers 5 writes them.
    """
    if fields := files.read_object(model_dir / PROCESSORS[media]):
        return fields
    nested = files.read_object(model_dir / "processor_config.json").get(f"{media}_processor")
    return nested if isinstance(nested, dict) else {}


def model_type(model_dir: Path) -> object:
    """Returns the architecture (model_type), that of the whole model if it contains others; None if unknown."""
    if model_file.is_one(model_dir):
        return read(model_dir).get("model_type")
    return files.read_object(model_dir / "config.json").get("model_type")


def is_head(model_dir: Path, method: str) -> bool:
    """Returns whether the model is a draft head for another model, of the method "eagle3" or "dflash"."""
    architectures = files.read_object(model_dir / "config.json").get("architectures")
    return isinstance(architectures, list) and any(method in str(name).lower() for name in architectures)


def context_length(config: Json) -> int:
    """Returns the context length in tokens; 0 if unknown."""
    return next((value for name in CONTEXT_NAMES if (value := _count(config, name))), 0)


def vocab_size(config: Json) -> int:
    """Returns the number of rows of the embedding table; 0 if unknown."""
    return _count(config, "vocab_size")


def kv_bytes_per_token(config: Json, keys: str, values: str) -> int:
    """Returns the size in bytes of a token's keys and values in all layers, in these precisions; 0 if unknown."""
    layers = _attention_layers(config) or _count(config, "num_hidden_layers") or _count(config, "n_layer")
    heads = _count(config, "num_attention_heads") or _count(config, "n_head")
    kv_heads = _count(config, "num_key_value_heads") or heads
    hidden = _count(config, "hidden_size") or _count(config, "n_embd")
    head_dim = _count(config, "head_dim") or (hidden // heads if heads else 0)
    per_element, per_head = VALUE_BYTES.get(values, VALUE_BYTES["f32"])
    per_element += KEY_BYTES.get(keys, KEY_BYTES["f32"])
    return int(layers * kv_heads * (head_dim * per_element + per_head)) if head_dim else 0


def _attention_layers(config: Json) -> int:
    """Returns the number of attention layers in a model whose other layers keep no keys and values; 0 if unknown."""
    kinds = config.get("layer_types")
    return sum(kind not in KEYLESS_LAYERS for kind in kinds) if isinstance(kinds, list) else 0


def _count(config: Json, name: str) -> int:
    value = config.get(name)
    return value if type(value) is int and value > 0 else 0

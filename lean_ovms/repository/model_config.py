"""A model's config.json: context length, vocabulary size, and size of its KV cache.

Vision models nest the numbers of their language model in text_config. The numbers are estimates that loading needs: the
size of the cache is measured after loading.
"""

from __future__ import annotations

from pathlib import Path

from ..types import Json
from ..util import files
from . import model_file

CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "seq_len", "seq_length", "n_ctx")
"""Fields that may hold the context length. OVMS reads sliding_window too, which is an attention span and does not limit
the context."""
KEY_BYTES = {"u4": 0.75, "u8": 1.25, "f16": 2, "bf16": 2, "f32": 4}
VALUE_BYTES = {"u4": (0.5, 8), "u8": (1, 8), "f16": (2, 0), "bf16": (2, 0), "f32": (4, 0)}
"""Bytes of a token's key per element of a head; of its value per element and per head. Scales are included: those of
keys are for a channel of a block, those of values for a token (the CPU plugin's inputs of PagedAttention)."""

STATE_LAYERS = ("conv", "linear_attention", "mamba")
"""Values of layer_types whose layers have a state of one size for each sequence, and no keys and values."""


def read(model_dir: Path) -> Json:
    """Returns config.json with the fields of text_config over those of the top level; {} if there is none.

    A model that is one file has the same fields in itself; raises StartError for one that cannot be served.
    """
    if (file := model_file.of(model_dir)) is not None:
        return file.config()
    return flat(files.read_object(model_dir / "config.json"))


def flat(config: Json) -> Json:
    """Returns config.json with the fields of text_config over those of the top level. Omni models have it inside."""
    thinker = config.get("thinker_config")
    inner = (thinker if isinstance(thinker, dict) else config).get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


PROCESSORS = {"image": "preprocessor_config.json", "video": "video_preprocessor_config.json"}


def processor(model_dir: Path, media: str) -> Json:
    """Returns the fields of a model's processor of images or videos.

    They are in a file of their own, or in processor_config.json, where transformers 5 writes them.

    Args:
        model_dir: The directory of the model.
        media: What is processed: a key of PROCESSORS.
    """
    if fields := files.read_object(model_dir / PROCESSORS[media]):
        return fields
    nested = files.read_object(model_dir / "processor_config.json").get(f"{media}_processor")
    return nested if isinstance(nested, dict) else {}


def model_type(model_dir: Path) -> object:
    """Returns the architecture, of the whole model where a language model is part of it; None: unknown."""
    if model_file.is_one(model_dir):
        return read(model_dir).get("model_type")
    return files.read_object(model_dir / "config.json").get("model_type")


def is_head(model_dir: Path, method: str) -> bool:
    """Returns whether the model is a head that drafts tokens for another by a method: "eagle3" or "dflash"."""
    architectures = files.read_object(model_dir / "config.json").get("architectures")
    return isinstance(architectures, list) and any(method in str(name).lower() for name in architectures)


def context_length(config: Json) -> int:
    """Returns the context length in tokens; 0: unknown."""
    return next((value for name in CONTEXT_NAMES if (value := _count(config, name))), 0)


def vocab_size(config: Json) -> int:
    """Returns the rows of the embedding table; 0: unknown."""
    return _count(config, "vocab_size")


def kv_bytes_per_token(config: Json, keys: str, values: str) -> int:
    """Returns the bytes of the keys and values of one token in all layers, in these precisions; 0: unknown."""
    layers = _attention_layers(config) or _count(config, "num_hidden_layers") or _count(config, "n_layer")
    heads = _count(config, "num_attention_heads") or _count(config, "n_head")
    kv_heads = _count(config, "num_key_value_heads") or heads
    hidden = _count(config, "hidden_size") or _count(config, "n_embd")
    head_dim = _count(config, "head_dim") or (hidden // heads if heads else 0)
    per_element, per_head = VALUE_BYTES.get(values, VALUE_BYTES["f32"])
    per_element += KEY_BYTES.get(keys, KEY_BYTES["f32"])
    return int(layers * kv_heads * (head_dim * per_element + per_head)) if head_dim else 0


def _attention_layers(config: Json) -> int:
    """Returns the number of attention layers of a model whose other layers keep a state; 0: unknown."""
    kinds = config.get("layer_types")
    return sum(kind not in STATE_LAYERS for kind in kinds) if isinstance(kinds, list) else 0


def _count(config: Json, name: str) -> int:
    value = config.get(name)
    return value if type(value) is int and value > 0 else 0

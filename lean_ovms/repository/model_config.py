"""Reads what a model's config.json and networks say: its context length, sizes and precision, and truncated files.

Vision models have the values of their language model in text_config. The size of the KV cache is an estimate for
loading; the actual size is measured afterwards. A network (.xml) lists the type, offset and size of each constant in
the .bin file of the same name: https://docs.openvino.ai/2026/documentation/openvino-ir-format.html
"""

from __future__ import annotations

import re
from pathlib import Path

from ..composition import compose
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

LFS_POINTER_BYTES = range(120, 200)
"""Sizes of the text that a clone without Git LFS has in place of a file."""
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
    return next((value for name in CONTEXT_NAMES if (value := count(config, name))), 0)


def vocab_size(config: Json) -> int:
    """Returns the number of rows of the embedding table; 0 if unknown."""
    return count(config, "vocab_size")


def kv_bytes_per_token(config: Json, keys: str, values: str) -> int:
    """Returns the size in bytes of a token's keys and values in all layers, in these precisions; 0 if unknown."""
    layers = _attention_layers(config) or count(config, "num_hidden_layers") or count(config, "n_layer")
    heads = count(config, "num_attention_heads") or count(config, "n_head")
    kv_heads = count(config, "num_key_value_heads") or heads
    hidden = count(config, "hidden_size") or count(config, "n_embd")
    head_dim = count(config, "head_dim") or (hidden // heads if heads else 0)
    per_element, per_head = VALUE_BYTES.get(values, VALUE_BYTES["f32"])
    per_element += KEY_BYTES.get(keys, KEY_BYTES["f32"])
    return int(layers * kv_heads * (head_dim * per_element + per_head)) if head_dim else 0


def _attention_layers(config: Json) -> int:
    """Returns the number of attention layers in a model whose other layers keep no keys and values; 0 if unknown."""
    kinds = config.get("layer_types")
    return sum(kind not in KEYLESS_LAYERS for kind in kinds) if isinstance(kinds, list) else 0


def count(config: Json, name: str) -> int:
    """Returns the positive integer with this key in a config.json, or 0 if there is none."""
    value = config.get(name)
    return value if type(value) is int and value > 0 else 0


# --- networks

TEXT_MODEL, LANGUAGE_MODEL = "openvino_model.xml", "openvino_language_model.xml"
TEXT_EMBEDDINGS = "openvino_text_embeddings_model.xml"
"""The file of the network that computes the embeddings of token ids, in a model with vision."""
TALKER = "openvino_talker_model.xml"
"""The file of the network for speech, which identifies an omni model."""
MTP_HEAD = "openvino_mtp_model.xml"
"""The file of a model's multi-token prediction head, which drafts tokens."""
TEXT_NETWORKS = (TEXT_MODEL, LANGUAGE_MODEL)
"""The file of a text model's network, or of the language model in a model with vision."""
TOKENIZERS = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
"""The files of the tokenizer and the detokenizer."""
_CONSTANT = re.compile(rb'<data element_type="(\w+)"[^>]*? offset="(\d+)" size="(\d+)"')
GIGA = 1e9
EDGE_BYTES = 1024
"""The number of bytes at the beginning and at the end of a network's file that are examined."""


def networks() -> tuple[str, ...]:
    """Returns the names of files each of which shows that its directory is a model."""
    return (*TEXT_NETWORKS, *(row.networks[0] for row in compose().tasks if row.networks))


def needed_networks() -> tuple[str, ...]:
    """Returns the names of networks that every model of the respective task needs."""
    return (*TEXT_NETWORKS, *(name for row in compose().tasks for name in row.networks))


def precision(directory: Path) -> str:
    """Returns the element type of most of the weights, such as u4 or f16; "" if unknown."""
    return most_used(bytes_by_type(directory))


def most_used(sizes: dict[str, int]) -> str:
    """Returns the type with the most bytes; "" if there is none."""
    return max(sizes, key=lambda kind: sizes[kind], default="")


def bytes_by_type(directory: Path) -> dict[str, int]:
    """Returns the total size in bytes of the constants of each element type; {} if the network cannot be read."""
    network = next((directory / name for name in TEXT_NETWORKS if (directory / name).is_file()), None)
    sizes: dict[str, int] = {}
    once = {place: (kind, size) for kind, place, size in _constants(network)} if network else {}  # places are shared
    for kind, size in once.values():
        sizes[kind] = sizes.get(kind, 0) + size
    return sizes


def short_file(directory: Path, *, needed_only: bool = False) -> str:
    """Returns a message about a truncated file, for instance after an interrupted copy; "" if there is none.

    With `needed_only`, it examines only the networks that every model needs.
    """
    needed = {*needed_networks(), *TOKENIZERS}
    for network in sorted(directory.glob("*.xml")):
        if needed_only and network.name not in needed:
            continue
        if _is_cut(network):
            return f"{network} is truncated: copy, pull or export the model again"
        size = max((place + size for _, place, size in _constants(network)), default=0)
        weights = network.with_suffix(".bin")
        try:
            found = weights.stat().st_size
        except OSError:
            found = 0
        if found < size:
            remedy = "run git lfs pull" if found in LFS_POINTER_BYTES else "copy, pull or export the model again"
            return f"{weights} is truncated, with {found} of {size} bytes: {remedy}"
    return ""


def _is_cut(network: Path) -> bool:
    """Returns whether a network's file has a beginning but no end."""
    try:
        with open(network, "rb") as file:
            begin = file.read(EDGE_BYTES)
            file.seek(max(0, network.stat().st_size - EDGE_BYTES))
            return b"<net " in begin and b"</net>" not in file.read()
    except OSError:
        return False


def weights_bytes(path: Path) -> int:
    """Returns the size in bytes of the weights of a model directory or model file; 0 if they cannot be read."""
    try:
        files = [*path.iterdir(), *path.glob("*/openvino_model.bin")] if path.is_dir() else model_file.parts(path)
        return sum(file.stat().st_size for file in files if file.suffix == ".bin" or model_file.is_one(file))
    except OSError:
        return 0


def memory(directory: Path, free: int, cache_gb: int) -> str:
    """Describes how much memory the weights and the KV cache of this size need, and how many bytes are free."""
    text = f"its weights take {weights_bytes(directory) / GIGA:.1f} GB, and {free / GIGA:.1f} GB of memory are free"
    return f"{text}, and --cache_size asks for another {cache_gb} GB" if cache_gb else text


def _constants(network: Path) -> list[tuple[str, int, int]]:
    """Returns the type, offset and size in bytes of each constant; [] for a file that cannot be read."""
    try:
        text = network.read_bytes()
    except OSError:
        return []
    return [(kind.decode(), int(place), int(size)) for kind, place, size in _CONSTANT.findall(text)]

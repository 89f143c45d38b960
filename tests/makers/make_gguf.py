"""Writes the demo model as a GGUF file.

The weights are those of `lean_ovms/demo_model/openvino_model.xml` as the engine computes with them (int8 times scale),
so F16 gives the same answers as the model's own files. Needs the package gguf (extra `test`). Keys and names are those
of llama.cpp's converter for Qwen3.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from lean_ovms.engine.loading.weights import floats
from lean_ovms.repository import safetensors
from tools.demo_weights import DEMO, weights

GGUF_CONTEXT = 8192  # GGUF's Qwen3 has no attention window, without which the model cannot read long prompts
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def make(path: Path, kind: str = "F16", **changes: Any) -> Path:
    """Writes the file. `changes` has metadata by key, to make files that are wrong on purpose; None leaves a key
    out."""
    config = json.loads((DEMO / "config.json").read_text())
    kinds = {name: getattr(gguf.LlamaFileType, f"MOSTLY_{name}") for name in ("F16", "Q8_0", "Q4_0")}
    metadata = {**numbers(config), "general.file_type": int(kinds[kind]), **words(), **changes}
    return pack(path, "qwen3", metadata, weights().items(), kind)


def pack(
    path: Path,
    architecture: str,
    metadata: dict[str, Any],
    tensors: Iterable[tuple[str, np.ndarray]],
    kind: str,
    embedding: str = "",
) -> Path:
    """Writes a file from tensors that need not be in memory at the same time.

    Args:
        path: The file to write.
        architecture: The architecture in GGUF.
        metadata: Further metadata by key; None leaves a key out.
        tensors: The tensors with their names. A matrix of bytes already consists of blocks of `kind`.
        kind: The type of the matrices.
        embedding: The type of the token embeddings, if it differs.
    """
    writer = gguf.GGUFWriter(path, architecture, use_temp_file=True)
    for key, value in metadata.items():
        if value is not None:
            put(writer, key, value)
    for name, data in tensors:
        matrix = embedding or kind if name == "token_embd.weight" else kind
        stored_as = getattr(gguf.GGMLQuantizationType, matrix if data.ndim > 1 else "F32")
        stored = data if data.dtype == np.uint8 else gguf.quants.quantize(data.astype(np.float32), stored_as)
        writer.add_tensor(name, stored, raw_dtype=stored_as)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def encoder(folder: Path, path: Path, kind: str = "F32") -> Path:
    """Writes a BERT of sentence-transformers with mean pooling, like llama.cpp's converter."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    source = folder / "model.safetensors"
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    found = {name: names.get_name(name, (".weight", ".bias")) for name in safetensors.header(source)}
    tensors = ((new, floats(safetensors.tensor(source, name))) for name, new in found.items() if new)
    vocabulary = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    ordered = sorted(vocabulary, key=vocabulary.__getitem__)
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    metadata = {
        "bert.block_count": config["num_hidden_layers"],
        "bert.context_length": config["max_position_embeddings"],
        "bert.embedding_length": config["hidden_size"],
        "bert.feed_forward_length": config["intermediate_size"],
        "bert.attention.head_count": config["num_attention_heads"],
        "bert.attention.layer_norm_epsilon": config["layer_norm_eps"],
        "bert.attention.causal": False,
        "bert.pooling_type": 1,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "bert",
        "tokenizer.ggml.tokens": [
            word if word in marks else word.removeprefix("##") if word.startswith("##") else f"\u2581{word}"
            for word in ordered
        ],
        "tokenizer.ggml.token_type": [CONTROL if word in marks else NORMAL for word in ordered],
        "tokenizer.ggml.padding_token_id": vocabulary["[PAD]"],
        "tokenizer.ggml.cls_token_id": vocabulary["[CLS]"],
        "tokenizer.ggml.seperator_token_id": vocabulary["[SEP]"],
    }
    return pack(path, "bert", metadata, tensors, kind)


def put(writer: Any, key: str, value: Any) -> None:
    kinds = {str: writer.add_string, float: writer.add_float32, bool: writer.add_bool, list: writer.add_array}
    kinds.get(type(value), writer.add_uint32)(key, value)


def numbers(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "qwen3.block_count": config["num_hidden_layers"],
        "qwen3.context_length": GGUF_CONTEXT,
        "qwen3.embedding_length": config["hidden_size"],
        "qwen3.feed_forward_length": config["intermediate_size"],
        "qwen3.attention.head_count": config["num_attention_heads"],
        "qwen3.attention.head_count_kv": config["num_key_value_heads"],
        "qwen3.attention.key_length": config["head_dim"],
        "qwen3.attention.value_length": config["head_dim"],
        "qwen3.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "qwen3.rope.freq_base": config["rope_parameters"]["rope_theta"],
    }


def words(folder: Path = DEMO) -> dict[str, Any]:
    """Returns the metadata of the tokenizer in a folder, whose special tokens have the demo model's ids."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    names = dict(tokenizer["model"]["vocab"])
    kinds = dict.fromkeys(names, NORMAL)
    for token in tokenizer["added_tokens"]:
        names[token["content"]] = token["id"]
        kinds[token["content"]] = CONTROL if token["special"] else USER_DEFINED
    ordered = sorted(names, key=names.__getitem__)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": ordered,
        "tokenizer.ggml.token_type": [kinds[name] for name in ordered],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.chat_template": (folder / "chat_template.jinja").read_text("utf-8"),
    }

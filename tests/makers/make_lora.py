"""Writes a LoRA adapter for the demo model, or another one of its architecture.

It is random, and strong enough to change answers. Files are those of peft: adapter_model.safetensors and
adapter_config.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

DEMO = Path(__file__).parents[2] / "lean_ovms" / "demo_model"
RANK, LORA_ALPHA = 4, 8


def make(folder: Path, seed: int = 1, strength: float = 0.5, layers: int = 0, model: Path = DEMO) -> Path:
    """Writes the adapter.

    Args:
        folder: Where it is written.
        seed: Of its numbers.
        strength: The size of its change before it is scaled by lora_alpha / rank.
        layers: The number of layers, 0 for all.
        model: The model's directory.

    Returns:
        The folder.
    """
    config = json.loads((model / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["head_dim"]
    shapes = {
        "self_attn.q_proj": (hidden, heads * config["num_attention_heads"]),
        "self_attn.v_proj": (hidden, heads * config["num_key_value_heads"]),
        "mlp.down_proj": (config["intermediate_size"], hidden),
    }
    dice = np.random.default_rng(seed)
    arrays = {}
    for layer in range(layers or config["num_hidden_layers"]):
        for name, (width, height) in shapes.items():
            place = f"base_model.model.model.layers.{layer}.{name}"
            arrays[f"{place}.lora_A.weight"] = dice.normal(size=(RANK, width)) / np.sqrt(width)
            arrays[f"{place}.lora_B.weight"] = dice.normal(size=(height, RANK)) * strength
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "adapter_model.safetensors", arrays)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": LORA_ALPHA, "target_modules": list(shapes)}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def write(file: Path, arrays: dict[str, np.ndarray]) -> Path:
    """Writes a .safetensors file of 32-bit floats. https://github.com/huggingface/safetensors#format"""
    header, data = {}, b""
    for name, array in arrays.items():
        piece = array.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return file


def write_gguf(
    file: Path, architecture: str, tensors: dict[str, tuple[np.ndarray, np.ndarray]], alpha: float = 0.0, **changes: Any
) -> Path:
    """Writes an adapter as convert_lora_to_gguf.py of llama.cpp does.

    Args:
        file: The file to write.
        architecture: The architecture in GGUF.
        tensors: The matrices A and B by the names of the tensors that they change, in llama.cpp's order of rows.
        alpha: The value of adapter.lora.alpha; 0 for none.
        **changes: "kind" for another type of the matrices A than F32, "general" and "method" for other values of
            general.type and adapter.type, and "tokens" for those of an activated LoRA.
    """
    import gguf

    writer = gguf.GGUFWriter(file, architecture)
    writer.add_string("general.type", changes.get("general", "adapter"))
    writer.add_string("adapter.type", changes.get("method", "lora"))
    if alpha:
        writer.add_float32("adapter.lora.alpha", alpha)
    if "tokens" in changes:
        writer.add_array("adapter.alora.invocation_tokens", changes["tokens"])
    kind = getattr(gguf.GGMLQuantizationType, changes.get("kind", "F32"))
    for name, (down, up) in tensors.items():
        writer.add_tensor(f"{name}.lora_a", gguf.quants.quantize(down.astype(np.float32), kind), raw_dtype=kind)
        writer.add_tensor(f"{name}.lora_b", up.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def in_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Returns rows of queries or keys in llama.cpp's order, in which RoPE's pairs are adjacent."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)

"""Writes the demo model as a Hugging Face folder.

The folder has config.json, the tokenizer's files and model.safetensors in float32, with the weights as the engine
computes with them (int8 times scale). transformers and vLLM can load it. Needs the package safetensors (extra `bench`).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.numpy import save_file

from tools.demo_weights import DEMO, MATRICES, NORMS, weights

OUTSIDE = {"token_embd": "embed_tokens", "output_norm": "norm"}
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def make(folder: Path) -> Path:
    """Writes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(DEMO / name, folder)
    save_file({there(name): data for name, data in weights().items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def there(name: str) -> str:
    """Returns the name of a tensor in transformers for its name in a GGUF file."""
    if not name.startswith("blk."):
        return f"model.{OUTSIDE[name.removesuffix('.weight')]}.weight"
    inside = {new: old for old, new in {**MATRICES, **NORMS}.items()}
    _, layer, kind, _ = name.split(".")
    return f"model.layers.{layer}.{inside[kind]}.weight"

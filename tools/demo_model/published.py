"""Reads the weights of an exported model to train it further: int8 times scale, as the engine computes with them."""

from __future__ import annotations

from pathlib import Path

import torch

from tools.demo_weights import DEMO, MATRICES, NORMS, weights

NAMES = {new: old for old, new in (MATRICES | NORMS).items()}


def published(folder: Path = DEMO) -> dict[str, torch.Tensor]:
    """Returns the torch state of a model in a folder that `export` wrote, by default the model of the package."""
    state = {}
    for name, values in weights(folder).items():
        parts = name.removesuffix(".weight").split(".")
        if parts[0] == "blk":
            key = f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"
        else:
            key = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]
        state[key] = torch.from_numpy(values.copy())
    return state

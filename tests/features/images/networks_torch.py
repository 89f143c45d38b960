"""The networks of stable_diffusion_tiny.tar.xz and flux_tiny.tar.xz in torch: tiny, with random weights.

Their images are noise that depends on the prompt, the seed, the steps and the guidance.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"
START, END = "<|startoftext|>", "<|endoftext|>"
POSITIONS = 16
TEXT: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": POSITIONS, "projection_dim": 16,
}  # fmt: skip
UNET: dict[str, Any] = {
    "sample_size": 8, "in_channels": 4, "out_channels": 4, "layers_per_block": 1, "block_out_channels": (8, 16),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "cross_attention_dim": 16, "attention_head_dim": 2, "norm_num_groups": 4,
}  # fmt: skip
VAE: dict[str, Any] = {
    "sample_size": 16, "latent_channels": 4, "block_out_channels": (8, 8), "layers_per_block": 1, "norm_num_groups": 4,
    "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
}  # fmt: skip
T5: dict[str, Any] = {
    "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "feed_forward_proj": "gated-gelu",
}  # fmt: skip
TRANSFORMER: dict[str, Any] = {
    "in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 8, "num_attention_heads": 2,
    "joint_attention_dim": 16, "pooled_projection_dim": 16, "axes_dims_rope": (2, 2, 4), "guidance_embeds": True,
}  # fmt: skip
FLUX_VAE: dict[str, Any] = {**VAE, "scaling_factor": 0.3611, "shift_factor": 0.1159}


def tokenizer(folder: Path) -> CLIPTokenizer:
    """Returns a tokenizer with a token for each letter, inside a word and at its end."""
    words = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), START, END]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    names = {"bos_token": START, "eos_token": END, "unk_token": END, "pad_token": END}
    return CLIPTokenizer.from_pretrained(folder, model_max_length=POSITIONS, **names)


def t5_tokenizer() -> T5Tokenizer:
    """Returns a tokenizer with a token for each letter, and for the space."""
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0), *((one, -3.0) for one in LETTERS)]
    return T5Tokenizer(vocab=vocabulary, extra_ids=0, model_max_length=POSITIONS)


def clip(words: int) -> CLIPTextModel:
    """Returns a text encoder with this many tokens, of which the last two are the start and the end."""
    ends = {"bos_token_id": words - 2, "eos_token_id": words - 1, "pad_token_id": words - 1}
    return CLIPTextModel(CLIPTextConfig(vocab_size=words, **ends, **TEXT))


def networks(words: int) -> tuple[CLIPTextModel, UNet2DConditionModel, AutoencoderKL]:
    """Returns the text encoder, the denoiser, and the encoder and decoder of images, in torch."""
    made = clip(words), UNet2DConditionModel(**UNET), AutoencoderKL(**VAE)
    _set_weights(made)
    return made


def flux_networks(
    words: int, pieces: int
) -> tuple[CLIPTextModel, T5EncoderModel, FluxTransformer2DModel, AutoencoderKL]:
    """Returns the two text encoders, the denoiser, and the encoder and decoder of images, in torch."""
    made = clip(words), T5EncoderModel(T5Config(vocab_size=pieces, **T5)), FluxTransformer2DModel(**TRANSFORMER)
    networks = *made, AutoencoderKL(**FLUX_VAE)
    _set_weights(networks)
    return networks


def _set_weights(networks: tuple[torch.nn.Module, ...]) -> None:
    """Sets random weights that are multiples of 1/16, so that files are small."""
    for number, network in enumerate(networks):
        network.eval()
        random = np.random.default_rng(number)
        for name, weight in network.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.zeros_(weight)
            elif weight.ndim > 1:
                size = 1.0 if "embedding" in name else weight[0].numel() ** -0.5
                values = np.round(random.normal(size=weight.shape) * size * 16) / 16
                weight.data = torch.tensor(values, dtype=torch.float32)

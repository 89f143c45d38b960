"""Makes tests/data/image_model.tar.xz: a tiny random Stable Diffusion as OpenVINO IR.

    pip install torch transformers diffusers && python -m tools.make_image_model

Its pictures are noise that depends on the prompt, the seed, the steps and the guidance; the shape of the folder and the
names of the networks' inputs are those that optimum-intel exports. `networks` makes the same networks in torch, so that
tests can compare with diffusers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from openvino_tokenizers import convert_tokenizer
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from tools.zoo import pack

OUT = Path(__file__).parents[1] / "tests" / "data" / "image_model.tar.xz"
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
SCHEDULER: dict[str, Any] = {
    "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "clip_sample": False,
    "set_alpha_to_one": False, "steps_offset": 1, "timestep_spacing": "leading",
}  # fmt: skip


def tokenizer(folder: Path) -> CLIPTokenizer:
    """A token for each letter, inside a word and at its end."""
    words = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), START, END]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    names = {"bos_token": START, "eos_token": END, "unk_token": END, "pad_token": END}
    return CLIPTokenizer.from_pretrained(folder, model_max_length=POSITIONS, **names)


def networks(words: int) -> tuple[CLIPTextModel, UNet2DConditionModel, AutoencoderKL]:
    """The text encoder, the denoiser, and the encoder and decoder of pictures, in torch."""
    ends = {"bos_token_id": words - 2, "eos_token_id": words - 1, "pad_token_id": words - 1}
    text = CLIPTextModel(CLIPTextConfig(vocab_size=words, **ends, **TEXT))
    made = (text.eval(), UNet2DConditionModel(**UNET).eval(), AutoencoderKL(**VAE).eval())
    for number, network in enumerate(made):
        random = np.random.default_rng(number)
        for name, weight in network.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.zeros_(weight)
            elif weight.ndim > 1:
                size = 1.0 if "embed" in name else weight[0].numel() ** -0.5
                values = np.round(random.normal(size=weight.shape) * size * 16) / 16
                weight.data = torch.tensor(values, dtype=torch.float32)
    return made


class Denoiser(torch.nn.Module):
    """The denoiser with plain inputs and output."""

    def __init__(self, unet: UNet2DConditionModel) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, sample: Any, timestep: Any, encoder_hidden_states: Any) -> Any:
        return self.unet(sample, timestep, encoder_hidden_states, return_dict=False)[0]


class Decoder(torch.nn.Module):
    """The decoder of pictures with a plain input and output."""

    def __init__(self, vae: AutoencoderKL) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, latent_sample: Any) -> Any:
        return self.vae.decode(latent_sample, return_dict=False)[0]


class PictureEncoder(torch.nn.Module):
    """The encoder of pictures with a plain input, and the mean and the logarithm of the variance as its output."""

    def __init__(self, vae: AutoencoderKL) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, sample: Any) -> Any:
        return self.vae.encode(sample).latent_dist.parameters


class Encoder(torch.nn.Module):
    """The text encoder with a plain input and outputs."""

    def __init__(self, text: CLIPTextModel) -> None:
        super().__init__()
        self.text = text

    def forward(self, input_ids: Any) -> Any:
        found = self.text(input_ids)
        return found.last_hidden_state, found.pooler_output


def write(network: torch.nn.Module, folder: Path, inputs: dict[str, Any], shapes: dict[str, list[int]],
          outputs: tuple[str, ...], config: dict[str, Any]) -> None:  # fmt: skip
    """Write a network and its config.json."""
    folder.mkdir()
    with torch.no_grad():
        model = ov.convert_model(network, example_input=inputs, input=[(name, shapes[name]) for name in inputs])
    for port, name in zip(model.inputs, inputs, strict=True):
        port.get_tensor().set_names({name})
    for port, name in zip(model.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)  # or times are not exact
    (folder / "config.json").write_text(json.dumps(config))


def make(root: Path) -> Path:
    """The model's directory."""
    target = root / "stable_diffusion_tiny"
    for name in ("tokenizer", "scheduler"):
        (target / name).mkdir(parents=True)
    words = tokenizer(target / "tokenizer")
    ov.save_model(convert_tokenizer(words), target / "tokenizer" / "openvino_tokenizer.xml")
    text, unet, vae = networks(len(words))
    ids = torch.zeros((2, POSITIONS), dtype=torch.int64)
    write(Encoder(text), target / "text_encoder", {"input_ids": ids}, {"input_ids": [-1, POSITIONS]},
          ("last_hidden_state", "pooler_output"), json.loads(text.config.to_json_string()))  # fmt: skip
    latent = torch.zeros((2, 4, 8, 8))
    write(Denoiser(unet), target / "unet",
          {"sample": latent, "timestep": torch.tensor([1]), "encoder_hidden_states": torch.zeros((2, POSITIONS, 16))},
          {"sample": [-1, 4, -1, -1], "timestep": [1], "encoder_hidden_states": [-1, -1, 16]},
          ("out_sample",), dict(unet.config))  # fmt: skip
    write(Decoder(vae), target / "vae_decoder", {"latent_sample": latent}, {"latent_sample": [-1, 4, -1, -1]},
          ("sample",), dict(vae.config))  # fmt: skip
    write(PictureEncoder(vae), target / "vae_encoder", {"sample": torch.zeros((2, 3, 16, 16))},
          {"sample": [-1, 3, -1, -1]}, ("latent_parameters",), dict(vae.config))  # fmt: skip
    DDIMScheduler(**SCHEDULER).save_pretrained(target / "scheduler")
    parts = {
        "scheduler": ["diffusers", "DDIMScheduler"], "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"], "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }  # fmt: skip
    (target / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline", **parts}))
    return target


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder))
        pack(sorted(path for path in made.rglob("*") if path.is_file()), OUT, made.parent)
        print(OUT, OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()

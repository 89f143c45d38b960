"""Makes stable_diffusion_tiny.tar.xz and flux_tiny.tar.xz in tests/features/images: tiny random models as OpenVINO IR.

    pip install torch transformers diffusers && python -m tests.makers.make_image_model

Their images are noise that depends on the prompt, the seed, the steps and the guidance. The structure of the folders
and the names of the networks' inputs are those that optimum-intel exports. `networks` and `flux_networks` return the
same networks in torch, so that tests can compare with diffusers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from diffusers import AutoencoderKL, DDIMScheduler, FluxTransformer2DModel, UNet2DConditionModel
from openvino_tokenizers import convert_tokenizer
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

from tests.makers.zoo import pack

DATA = Path(__file__).parents[2] / "tests" / "features" / "images"
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
T5: dict[str, Any] = {
    "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "feed_forward_proj": "gated-gelu",
}  # fmt: skip
TRANSFORMER: dict[str, Any] = {
    "in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 8, "num_attention_heads": 2,
    "joint_attention_dim": 16, "pooled_projection_dim": 16, "axes_dims_rope": (2, 2, 4), "guidance_embeds": True,
}  # fmt: skip
FLUX_VAE: dict[str, Any] = {**VAE, "scaling_factor": 0.3611, "shift_factor": 0.1159}
FLOW: dict[str, Any] = {
    "shift": 3.0, "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
}  # fmt: skip


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


class Denoiser(torch.nn.Module):
    """The denoiser with tensors as inputs and output."""

    def __init__(self, unet: UNet2DConditionModel) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, sample: Any, timestep: Any, encoder_hidden_states: Any) -> Any:
        return self.unet(sample, timestep, encoder_hidden_states, return_dict=False)[0]


class Decoder(torch.nn.Module):
    """The decoder of images with tensors as input and output."""

    def __init__(self, vae: AutoencoderKL) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, latent_sample: Any) -> Any:
        return self.vae.decode(latent_sample, return_dict=False)[0]


class PictureEncoder(torch.nn.Module):
    """The encoder of images, with a tensor as input; its output is the mean and the logarithm of the variance."""

    def __init__(self, vae: AutoencoderKL) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, sample: Any) -> Any:
        return self.vae.encode(sample).latent_dist.parameters


class Encoder(torch.nn.Module):
    """The text encoder with tensors as input and outputs."""

    def __init__(self, text: CLIPTextModel) -> None:
        super().__init__()
        self.text = text

    def forward(self, input_ids: Any) -> Any:
        found = self.text(input_ids)
        return found.last_hidden_state, found.pooler_output


class TextEncoder2(torch.nn.Module):
    """The second text encoder with tensors as input and output."""

    def __init__(self, text: T5EncoderModel) -> None:
        super().__init__()
        self.text = text

    def forward(self, input_ids: Any) -> Any:
        return self.text(input_ids).last_hidden_state


class FluxDenoiser(torch.nn.Module):
    """The denoiser of Flux with tensors as inputs and output."""

    def __init__(self, transformer: FluxTransformer2DModel) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, hidden_states: Any, timestep: Any, encoder_hidden_states: Any, pooled_projections: Any,
                img_ids: Any, txt_ids: Any, guidance: Any) -> Any:  # fmt: skip
        return self.transformer(
            hidden_states, encoder_hidden_states, pooled_projections, timestep, img_ids, txt_ids, guidance,
            return_dict=False,
        )[0]  # fmt: skip


def write(network: torch.nn.Module, folder: Path, inputs: dict[str, Any], shapes: dict[str, list[int]],
          outputs: tuple[str, ...], config: dict[str, Any]) -> None:  # fmt: skip
    """Writes a network and its config.json."""
    folder.mkdir()
    with torch.no_grad():
        model = ov.convert_model(network, example_input=inputs, input=[(name, shapes[name]) for name in inputs])
    for port, name in zip(model.inputs, inputs, strict=True):
        port.get_tensor().set_names({name})
    for port, name in zip(model.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    # Otherwise time steps would not be exact.
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    (folder / "config.json").write_text(json.dumps(config))


def write_pictures(vae: AutoencoderKL, target: Path) -> None:
    """Writes the encoder and the decoder of images."""
    shape = [-1, 4, -1, -1]
    write(Decoder(vae), target / "vae_decoder", {"latent_sample": torch.zeros((2, 4, 8, 8))}, {"latent_sample": shape},
          ("sample",), dict(vae.config))  # fmt: skip
    write(PictureEncoder(vae), target / "vae_encoder", {"sample": torch.zeros((2, 3, 16, 16))},
          {"sample": [-1, 3, -1, -1]}, ("latent_parameters",), dict(vae.config))  # fmt: skip


def begin(target: Path, kind: str, **parts: str) -> CLIPTokenizer:
    """Writes everything but networks. Returns the first tokenizer. `parts` has classes by their folders."""
    (target / "tokenizer").mkdir(parents=True)
    index = {
        name: ["transformers" if name[:5] in ("text_", "token") else "diffusers", part] for name, part in parts.items()
    }
    (target / "model_index.json").write_text(json.dumps({"_class_name": kind, **index}))
    words = tokenizer(target / "tokenizer")
    ov.save_model(convert_tokenizer(words), target / "tokenizer" / "openvino_tokenizer.xml")
    return words


def write_clip(text: CLIPTextModel, target: Path) -> None:
    ids = torch.zeros((2, POSITIONS), dtype=torch.int64)
    write(Encoder(text), target / "text_encoder", {"input_ids": ids}, {"input_ids": [-1, POSITIONS]},
          ("last_hidden_state", "pooler_output"), json.loads(text.config.to_json_string()))  # fmt: skip


def make(root: Path) -> Path:
    """Writes the directory of Stable Diffusion."""
    target = root / "stable_diffusion_tiny"
    words = begin(target, "StableDiffusionPipeline", scheduler="DDIMScheduler", text_encoder="CLIPTextModel",
                  tokenizer="CLIPTokenizer", unet="UNet2DConditionModel", vae="AutoencoderKL")  # fmt: skip
    text, unet, vae = networks(len(words))
    write_clip(text, target)
    write(Denoiser(unet), target / "unet",
          {"sample": torch.zeros((2, 4, 8, 8)), "timestep": torch.tensor([1]),
           "encoder_hidden_states": torch.zeros((2, POSITIONS, 16))},
          {"sample": [-1, 4, -1, -1], "timestep": [1], "encoder_hidden_states": [-1, -1, 16]},
          ("out_sample",), dict(unet.config))  # fmt: skip
    write_pictures(vae, target)
    DDIMScheduler(**SCHEDULER).save_pretrained(target / "scheduler")
    return target


def make_flux(root: Path) -> Path:
    """Writes the directory of Flux."""
    target = root / "flux_tiny"
    words = begin(target, "FluxPipeline", scheduler="FlowMatchEulerDiscreteScheduler", text_encoder="CLIPTextModel",
                  text_encoder_2="T5EncoderModel", tokenizer="CLIPTokenizer", tokenizer_2="T5Tokenizer",
                  transformer="FluxTransformer2DModel", vae="AutoencoderKL")  # fmt: skip
    pieces = t5_tokenizer()
    ov.save_model(convert_tokenizer(pieces), target / "tokenizer_2" / "openvino_tokenizer.xml")
    text, t5, transformer, vae = flux_networks(len(words), len(pieces))
    write_clip(text, target)
    write(TextEncoder2(t5), target / "text_encoder_2", {"input_ids": torch.zeros((2, POSITIONS), dtype=torch.int64)},
          {"input_ids": [-1, -1]}, ("last_hidden_state",), json.loads(t5.config.to_json_string()))  # fmt: skip
    inputs = {
        "hidden_states": torch.zeros((2, 6, 16)), "timestep": torch.ones(2), "encoder_hidden_states":
        torch.zeros((2, 8, 16)), "pooled_projections": torch.zeros((2, 16)), "img_ids": torch.zeros((6, 3)),
        "txt_ids": torch.zeros((8, 3)), "guidance": torch.ones(2),
    }  # fmt: skip
    shapes = {
        "hidden_states": [-1, -1, 16], "timestep": [-1], "encoder_hidden_states": [-1, -1, 16],
        "pooled_projections": [-1, 16], "img_ids": [-1, 3], "txt_ids": [-1, 3], "guidance": [-1],
    }  # fmt: skip
    write(FluxDenoiser(transformer), target / "transformer", inputs, shapes, ("out_sample",), dict(transformer.config))
    write_pictures(vae, target)
    (target / "scheduler").mkdir()
    flow = {"_class_name": "FlowMatchEulerDiscreteScheduler", **FLOW}  # like the models' own repositories
    (target / "scheduler" / "scheduler_config.json").write_text(json.dumps(flow))
    return target


def main() -> None:
    for maker in (make, make_flux):
        with tempfile.TemporaryDirectory() as folder:
            made = maker(Path(folder))
            file = DATA / f"{made.name}.tar.xz"
            pack(sorted(path for path in made.rglob("*") if path.is_file()), file, made.parent)
            print(file, file.stat().st_size, "bytes")


if __name__ == "__main__":
    main()

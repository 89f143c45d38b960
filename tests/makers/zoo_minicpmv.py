"""Makes the tiny MiniCPM-V of tests/data/zoo_mmproj, which transformers does not have.

Its answers are those of transformers' Qwen2 and SigLIP in torch, with OpenBMB's resampler and cutting into slices,
which are written here again. The tensors in the mmproj file have the names of llama.cpp's converter.

python -m tests.makers.zoo_minicpmv LLAMA_CPP DIR   (needs torch, transformers, Pillow; LLAMA_CPP: its sources)
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.makers import zoo_mmproj, zoo_vision, zoo_vision_torch
from tests.makers.zoo import pack

NAME, WIDTH, QUERIES = "minicpmv", 128, 4
TEXT = {**zoo_vision.TEXT, "hidden_size": WIDTH, "num_attention_heads": 4, "model_type": "qwen2", "rms_norm_eps": 1e-6}
SIDE, PATCH, PLACES, SLICES = 32, 8, 8, 9
"""The side of a slice and of a patch in pixels, the rows of the table of positions, and the most slices."""
MEAN = [0.5] * 3
EPSILON = 1e-6


def networks() -> tuple[Any, Any, dict[str, Any]]:
    """Returns the language model, the encoder, and the tensors of the resampler."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, SiglipVisionConfig, SiglipVisionModel

    torch.manual_seed(1)
    text = Qwen2ForCausalLM(Qwen2Config(**{key: TEXT[key] for key in TEXT if key not in ("head_dim", "model_type")}))
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    pixels = {"image_size": PLACES * PATCH, "patch_size": PATCH, "vision_use_head": False}
    eyes = SiglipVisionModel(SiglipVisionConfig(**sizes, **pixels))
    with torch.no_grad():
        for name, weights in [*text.named_parameters(), *eyes.named_parameters()]:
            if weights.ndim > 1 and not name.startswith(("model.", "lm_head")):
                weights.normal_(std=0.2)
            weights.copy_((weights * 16).round() / 16)
        text.lm_head.weight[: len(zoo_vision.SPECIAL)] = 0
        text.lm_head.weight[340] = 0
        made = {"query": (QUERIES, WIDTH), "kv": (WIDTH, 64), "proj": (WIDTH, WIDTH)}
        made |= {f"attn.{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "out")}
        resampler = {f"{name}.weight": (torch.randn(size) * 3).round() / 16 for name, size in made.items()}
        resampler |= {f"attn.{part}.bias": torch.randn(WIDTH).round() / 16 for part in ("q", "k", "v", "out")}
        for part in ("q", "kv", "post"):
            resampler |= {f"ln_{part}.weight": torch.ones(WIDTH), f"ln_{part}.bias": torch.randn(WIDTH).round() / 16}
    return text.float().eval(), eyes.float().eval(), resampler


def write(text: Any, eyes: Any, resampler: dict[str, Any], words: Any, llama_cpp: Path, folder: Path) -> list[Path]:
    """Writes NAME.gguf and its mmproj file into a folder."""
    source = folder / NAME
    text.save_pretrained(source)
    words.save_pretrained(source)
    zoo_mmproj.complete(source / "config.json", text)
    zoo_mmproj.fill(source / "tokenizer.json")
    model = zoo_mmproj.converted(source, llama_cpp, eyes=False)
    import gguf

    path = folder / f"mmproj-{NAME}.gguf"
    file = gguf.GGUFWriter(path, "clip")
    for key, value in (("has_text_encoder", False), ("has_vision_encoder", True), ("has_minicpmv_projector", True)):
        file.add_bool(f"clip.{key}", value)
    file.add_string("clip.projector_type", "resampler")
    file.add_int32("clip.minicpmv_version", 3)
    file.add_uint32("clip.minicpmv_query_num", QUERIES)
    numbers = {"image_size": SIDE, "patch_size": PATCH, "embedding_length": 64, "feed_forward_length": 32}
    for key, value in (numbers | {"projection_dim": 0, "attention.head_count": 2, "block_count": 2}).items():
        file.add_uint32(f"clip.vision.{key}", value)
    file.add_float32("clip.vision.attention.layer_norm_epsilon", EPSILON)
    for key in ("mean", "std"):
        file.add_array(f"clip.vision.image_{key}", MEAN)
    file.add_bool("clip.use_gelu", True)
    renamed = (
        *(("vision_model", "v"), ("encoder.layers", "blk"), ("embeddings.", ""), ("_proj", ""), ("embedding", "embd")),
        *(("self_attn.", "attn_"), ("layer_norm", "ln"), ("layernorm", "ln"), ("mlp.fc1", "ffn_down")),
        *(("mlp.fc2", "ffn_up"),),
    )
    for name, values in eyes.state_dict().items():
        new = name if name.startswith("vision_model") else f"vision_model.{name}"
        for old, part in renamed:
            new = new.replace(old, part)
        half = values.ndim > 1 and "position" not in new
        file.add_tensor(new, (values.half() if half else values).numpy())
    for name, values in resampler.items():
        new = f"resampler.{name.replace('query.weight', 'query')}"
        file.add_tensor(new, (values.half() if values.ndim > 1 and "query" not in name else values).numpy())
    for step in (file.write_header_to_file, file.write_kv_data_to_file, file.write_tensors_to_file, file.close):
        step()
    return [model, path]


def resize(size: tuple[float, float], *, larger: bool) -> tuple[int, int]:
    """OpenBMB's find_best_resize, with width before height."""
    width, height = size
    if width * height > SIDE * SIDE or larger:
        ratio = width / height
        height = int(SIDE / math.sqrt(ratio))
        width = int(height * ratio)
    return divided(width, PATCH), divided(height, PATCH)


def divided(length: float, unit: int) -> int:
    """OpenBMB's ensure_divide."""
    return max(round(length / unit) * unit, unit)


def slices(image: Any) -> tuple[list[Any], int]:
    """OpenBMB's slice_image: the whole image and its slices, and the number of slices in a row."""
    from PIL import Image

    bicubic = Image.Resampling.BICUBIC
    width, height = image.size
    multiple = min(math.ceil(width * height / (SIDE * SIDE)), SLICES)
    if multiple <= 1:
        return [image.resize(resize(image.size, larger=True), bicubic)], 0
    numbers = [number for number in (multiple - 1, multiple, multiple + 1) if number != 1 and number <= SLICES]
    grids = [(m, number // m) for number in numbers for m in range(1, number + 1) if number % m == 0]
    across, down = min(grids, key=lambda grid: abs(math.log(width / height) - math.log(grid[0] / grid[1])))
    cell = divided(width, across) / across, divided(height, down) / down
    best = resize(cell, larger=True)
    refined = image.resize((best[0] * across, best[1] * down), bicubic)
    boxes = [
        (best[0] * x, best[1] * y, best[0] * (x + 1), best[1] * (y + 1)) for y in range(down) for x in range(across)
    ]
    whole = image.resize(resize(image.size, larger=False), bicubic)
    return [whole, *(refined.crop(box) for box in boxes)], across


def encode(part: Any, eyes: Any, resampler: dict[str, Any]) -> Any:
    """Returns the embeddings of the tokens of a part of an image, by OpenBMB's modeling_navit_siglip and resampler."""
    import numpy as np
    import torch
    from torch.nn.functional import layer_norm, multi_head_attention_forward

    def norm(x: Any, name: str) -> Any:
        return layer_norm(x, (WIDTH,), resampler[f"ln_{name}.weight"], resampler[f"ln_{name}.bias"], EPSILON)

    pixels = torch.from_numpy((np.asarray(part, np.float32) / 255 - 0.5) / 0.5).permute(2, 0, 1)[None]
    tower = getattr(eyes, "vision_model", eyes)
    x = tower.embeddings.patch_embedding(pixels)
    rows, columns = x.shape[2:]
    bounds = torch.arange(1 / PLACES, 1.0, 1 / PLACES)
    down, across = (
        torch.bucketize(torch.arange(0, 1 - 1e-6, 1 / count), bounds, right=True) for count in (rows, columns)
    )
    x = x.flatten(2).transpose(1, 2) + tower.embeddings.position_embedding((down[:, None] * PLACES + across).flatten())
    x = tower.post_layernorm(tower.encoder(inputs_embeds=x).last_hidden_state)[0]
    values = norm(x @ resampler["kv.weight"].T, "kv")
    grid = np.stack(np.meshgrid(np.arange(columns, dtype=np.float32), np.arange(rows, dtype=np.float32)))
    omega = 1.0 / 10000 ** (np.arange(WIDTH // 4, dtype=np.float32) / (WIDTH / 4.0))
    waves = [np.outer(axis.reshape(-1), omega) for axis in grid]
    places = np.concatenate([turn(wave) for wave in waves for turn in (np.sin, np.cos)], 1)
    keys = values + torch.from_numpy(places.astype(np.float32))
    weights = torch.cat([resampler[f"attn.{part}.weight"] for part in "qkv"])
    biases = torch.cat([resampler[f"attn.{part}.bias"] for part in "qkv"])
    query = norm(resampler["query.weight"], "q")
    found, _ = multi_head_attention_forward(
        *(each[:, None] for each in (query, keys, values)),
        *(WIDTH, WIDTH // 128, weights, biases, None, None, False, 0.0),
        *(resampler["attn.out.weight"], resampler["attn.out.bias"]),
        training=False,
    )
    return norm(found[:, 0], "post") @ resampler["proj.weight"].T


def answer(
    prompt: str, text: Any, eyes: Any, resampler: dict[str, Any], words: Any
) -> tuple[int, list[int], list[float]]:
    """Returns the prompt's number of tokens, the answer's tokens and their log probabilities."""
    import torch
    from PIL import Image

    rows = []
    for number, size in enumerate(zoo_vision_torch.SIZES):
        tag = zoo_vision_torch.TAG.format(number)
        image = Image.frombytes("RGB", size[::-1], zoo_vision_torch.pixels(number))
        if tag in prompt:
            parts, across = slices(image)
            rows.append((prompt.index(tag), [encode(part, eyes, resampler) for part in parts]))
            token = "<unk>" * QUERIES
            lines = [f"<slice>{token}</slice>" * across] * ((len(parts) - 1) // across if across else 0)
            prompt = prompt.replace(tag, f"<image>{token}</image>" + "\n".join(lines) + "\n")
    rows.sort(key=lambda row: row[0])
    ids, logprobs = words.encode(prompt, add_special_tokens=False), list[float]()
    length = len(ids)
    with torch.no_grad():
        for _ in range(zoo_vision_torch.TOKENS):
            x = text.get_input_embeddings()(torch.tensor([ids]))
            if rows:
                shown = torch.tensor(ids) == words.convert_tokens_to_ids("<unk>")
                x[0, shown] = torch.cat([part for _, parts in rows for part in parts])
            line = text(inputs_embeds=x, use_cache=False).logits[0, -1].double().log_softmax(-1)
            ids.append(int(line.argmax()))
            logprobs.append(round(float(line.max()), 4))
    return length, ids[length:], logprobs


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    import torch

    words = zoo_vision.tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<unk>"]})
    text, eyes, resampler = networks()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        pack(write(text, eyes, resampler, words, Path(argv[0]), Path(folder)), Path(argv[1]) / f"{NAME}.tar.xz")
        prompts = zoo_vision_torch.PROMPTS
        found = {kind: answer(prompt, text, eyes, resampler, words) for kind, prompt in prompts.items()}
    print({kind: (length, len(set(ids))) for kind, (length, ids, _) in found.items()})
    zoo_mmproj.record({NAME: found}, Path(argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

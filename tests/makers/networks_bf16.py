"""Records how much bf16 differs from f32 in torch, for tiny networks that generate no text, and for additions to
others:
tests/data/zoo/networks_bf16.json.

A record has the mean difference of a network's output in bf16, and the first numbers of its last row in f32. Inputs are
longer than 4,096 tokens if positions are computed, and as long as the table of positions if there is one. The weights
in torch are made again, as tests/makers/zoo_gguf.py and zoo_vision.py made those of the files. Models of other files
are not made again (README.md), and keep their records.

python -m tests.makers.networks_bf16 [NAME...]   (needs torch, transformers and the package gguf)
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.makers import zoo, zoo_bf16, zoo_gguf, zoo_vision

DATA = Path(__file__).parents[1] / "data"
FILE = DATA / "zoo" / "networks_bf16.json"
FAR, LAST, HEAD = 4200, 1000, 16
"""The number of tokens of a long text, of its last ones that are compared, and of numbers of the last row that are
recorded."""
POOLING = {"bert_mean": (16, 60), "mpnet": (16, 60), "modernbert": (1, FAR), "qwen3_embed": (1, FAR)}
"""The number of texts, and of tokens in each, for one model of tests/data/pooling_models.zip of each kind of
positions."""
WINDOWS = {"gemma3_text": (4500, 5200)}
"""The window in tokens of some layers, and the number of tokens in the text."""
GGUF = dict.fromkeys(("gemma3_text-embedding", "modernbert", "jina_bert", "nomic_bert-moe"), (1, FAR))
TOWERS = [f"{name}-{part}" for name in ("clip", "siglip") for part in ("text", "image")]
"""Networks of texts and of images in the same file, whose vectors are compared."""
SAME = ("gemma4_unified", "gemma4-moe", "idefics3", "llava_next", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "smolvlm")
"""Models whose encoder has the layers and angles of another model, and one with a projection in its place."""
VISION = [name for name in zoo_vision.MODELS if name not in SAME]
BASE = "base-encoder"
"""The encoder of the real Whisper base with all its 1,500 positions."""
WHISPER, VOICE = ("encoder", "decoder"), ("encoder", "decoder", "postnet", "vocoder")
HEADS = "qwen3_5", "eagle3"
"""Heads for multi-token prediction, and Eagle-3's."""
NAMES = [
    *(f"pooling/{name}" for name in POOLING),
    *(f"towers/{name}" for name in TOWERS),
    *(f"gguf/{name}" for name in GGUF),
    *(f"vision/{name}" for name in VISION),
    *(f"whisper/{part}" for part in (*WHISPER, BASE)),
    *(f"voice/{part}" for part in VOICE),
    *(f"heads/{name}" for name in HEADS),
    *(f"lora/{name}" for name in zoo_gguf.ADAPTED),
    *(f"window/{name}" for name in WINDOWS),
]
VOICE_STEPS, TEXT = 1200, 400
"""The number of steps that a speech decoder computes at once, and the number of spoken tokens."""
SPOKEN = 100
"""The number of tokens that Whisper's decoder gets."""
SIZES = {"qwen": (32, 4096), "gemma4": (48, 840)}
"""Heights and widths of images with more than 2,000 patches, in more columns, or nearly more, than bf16 has integers.
The processor would not change these sizes."""
SMALL = (64, 64)
"""The height and width of an image for families that make it a square, or tiles."""
DRAFTED = 1200
"""The number of tokens in texts for heads and adapters."""


def texts(name: str) -> np.ndarray:
    """Returns the ids of a pooling model's texts, without special tokens: int64 [texts, tokens]."""
    kind, _, model = name.partition("/")
    size = (POOLING if kind == "pooling" else GGUF)[model]
    return np.random.RandomState(5).randint(5, 380 if kind == "pooling" else 64, size).astype(np.int64)


def titles(size: int) -> np.ndarray:
    """Returns the ids of texts of at most `size` tokens for a model of texts and images: int64 [texts, tokens]."""
    ids = np.random.RandomState(5).randint(5, 380, (16, size)).astype(np.int64)
    ids[:, 0], ids[:, -1] = 0, 1
    return ids


def pictures() -> np.ndarray:
    """Returns images in the size that a model of texts and images reads: uint8 [images, 32, 32, 3]."""
    return np.random.RandomState(9).randint(0, 256, (64, 32, 32, 3)).astype(np.uint8)


def image(name: str) -> tuple[np.ndarray, dict[str, Any]]:
    """Returns the image for an encoder, uint8 [height, width, 3], and its model's preprocessor_config.json."""
    fields = dict(zoo_vision.PIXELS[name])
    size = next((size for family, size in SIZES.items() if name.startswith(family)), SMALL)
    if name.startswith("qwen"):
        most = size[0] * size[1]
        named = "max_pixels" in fields
        fields |= {"max_pixels": most} if named else {"size": {**fields["size"], "longest_edge": most}}
    if name.startswith("gemma4"):
        fields |= {"max_soft_tokens": 280, "image_seq_length": 280}
    return np.random.RandomState(9).randint(0, 256, (*size, 3)).astype(np.uint8), fields


def tokens(name: str) -> list[int]:
    """Returns the text for a model that generates text with a head, an adapter or a wide window."""
    kind, _, model = name.partition("/")
    dice, length = random.Random(5), WINDOWS[model][1] if kind == "window" else DRAFTED
    known = [token for token in range(30, 250) if token % 6] if kind == "heads" else range(3, 64)
    return [dice.choice(known) for _ in range(length)]  # the zoo's Eagle-3 head lacks every sixth token


def numbers(*shape: int) -> np.ndarray:
    """Returns random numbers: float32."""
    return np.random.RandomState(6).standard_normal(shape).astype(np.float32)


def assert_near(name: str, exact: np.ndarray, found: np.ndarray, most: float, error: float = 1e-3) -> None:
    """Checks that a network computes in f32 what torch does, and that its bf16 is as close to it as torch's.

    Args:
        name: The name of the record.
        exact: The output in f32.
        found: The output in bf16.
        most: By what factor the difference may exceed torch's.
        error: The largest difference from the recorded output in f32, relative to its largest number.
    """
    known = json.loads(FILE.read_text())[name]
    wanted = np.array(known["head"])
    assert np.abs(head(exact) - wanted).max() <= error * max(1.0, np.abs(exact).max())
    assert 0 < difference(exact, found) < most * known["torch"]


def difference(exact: np.ndarray, found: np.ndarray) -> float:
    """Returns the mean difference of two outputs, at the last tokens of a long text."""
    return float(np.abs(last(exact) - last(found)).mean())


def last(output: np.ndarray) -> np.ndarray:
    return output[:, -LAST:] if output.ndim == 3 else output


def head(output: np.ndarray) -> np.ndarray:
    """Returns the first numbers of the last row, or the last ones of a sound."""
    return output.reshape(-1, output.shape[-1])[-1][:HEAD] if output.ndim > 1 else output[-HEAD:]


def of_vision(name: str) -> tuple[Any, Any]:
    """Returns a network in torch, and a function that runs it."""
    import torch

    from tests.makers import zoo_vision_torch

    model = zoo_vision.network(name)
    if not name.startswith("qwen"):  # the angles of Qwen's are computed outside of the files
        zoo_bf16.in_16_bits(model)
    pixels, zoo_vision.PIXELS[name] = image(name)
    inputs, _ = zoo_vision_torch._shown(name, model, [pixels])

    def ask(model: Any) -> Any:
        own = {key: value.to(model.dtype) if value.is_floating_point() else value for key, value in inputs.items()}
        found = model.get_image_features(**own)
        rows = found.pooler_output
        rows = torch.cat(list(rows)) if isinstance(rows, list | tuple) else rows.flatten(0, -2)
        return torch.cat([rows, *(getattr(found, "deepstack_features", None) or ())], 1)

    return model, ask


def of_text(name: str, model: Any) -> tuple[Any, Any]:
    """Returns a model that generates text, and a function that returns the log probabilities of its text."""
    import torch

    ids = torch.tensor([tokens(name)])

    def ask(model: Any) -> Any:
        lines = model(input_ids=ids, use_cache=False).logits[0, -LAST - 1 : -1].double().log_softmax(-1)
        return lines.gather(1, ids[0, -LAST:, None])[:, 0]

    return model, ask


def of_window(name: str) -> tuple[Any, Any]:
    """Returns a network in torch with a wide window, and a function that runs it."""
    model, _ = zoo_gguf.network(name)
    model.config.sliding_window = WINDOWS[name][0]
    for layer in model.model.layers:
        layer.self_attn.sliding_window = WINDOWS[name][0] if layer.self_attn.sliding_window else None
    return of_text(f"window/{name}", model)


def of_lora(name: str) -> tuple[Any, Any]:
    """Returns a network in torch with an adapter, and a function that runs it."""
    import torch

    model, _ = zoo_gguf.network(name)
    shapes = zoo_gguf.recorded()[name]["tensors"]
    for layer, matrices in zoo_gguf.adapter(shapes).items():
        down, up = (torch.tensor(matrix.T) for matrix in matrices)

        def adapted(module: Any, given: Any, found: Any, down: Any = down, up: Any = up) -> Any:
            return found + (given[0] @ down.to(found.dtype) @ up.to(found.dtype)) * zoo_gguf.STRENGTH

        model.get_submodule(layer).register_forward_hook(adapted)
    return of_text(f"lora/{name}", model)


def of_gguf(name: str) -> tuple[Any, Any]:
    """Returns a network in torch, and a function that runs it."""
    import torch

    model, _ = zoo_gguf.network(name)
    ids = torch.tensor(texts(f"gguf/{name}"))
    more = {"token_type_ids": torch.zeros_like(ids)} if name in ("bert", "nomic_bert") else {}

    def ask(model: Any) -> Any:
        found = model(input_ids=ids, **more).last_hidden_state
        for tensor, shape in zoo_gguf.DENSE.get(name, {}).items():
            found = found @ torch.tensor(zoo_gguf.values(tensor, shape)).to(found.dtype).T
        return found

    return model, ask


def spoken(size: int) -> np.ndarray:
    """Returns the input of Whisper's decoder, for a vocabulary of `size` tokens."""
    return np.random.RandomState(7).randint(3, size, (1, SPOKEN)).astype(np.int64)


def letters() -> np.ndarray:
    """Returns the tokens that are spoken."""
    return np.random.RandomState(8).randint(5, 40, (1, TEXT)).astype(np.int64)


def decoded(width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the inputs of a speech decoder: frames, the speaker, and hidden states of this width."""
    return numbers(1, VOICE_STEPS, 80), numbers(1, 512), numbers(1, TEXT, width)


RECORDED = {"gguf": of_gguf, "vision": of_vision, "lora": of_lora, "window": of_window}
"""What makes the networks in torch, by the first part of their names."""


def record(name: str) -> dict[str, Any]:
    """Returns the entry of a network."""
    import torch

    kind, _, model_name = name.partition("/")
    model, ask = RECORDED[kind](model_name)
    with torch.no_grad():
        exact = ask(model.eval()).float().numpy()
        found = ask(zoo_bf16.in_bf16(model)).float().numpy()
    rounded = [round(float(value), 4) for value in head(exact)]
    return {"torch": float(f"{difference(exact, found):.3g}"), "head": rounded}


if __name__ == "__main__":
    own = {f"gguf/{name}" for name in zoo_gguf.OWN_CODE}
    ours = [name for name in NAMES if name.partition("/")[0] in RECORDED and name not in own]
    sys.exit(zoo.record(FILE, ours, record, __doc__ or ""))

"""Writes the answers of transformers in torch with the models of tests/data/zoo_vision: answers.json in that folder.

The weights in torch are made again, as tests/makers/zoo_vision.py made them, with the versions that it names. The
pixels are those of transformers' image processors with Pillow.

python -m tests.makers.zoo_vision_torch DIR [NAME...]   (needs torch, transformers, Pillow; for smolvlm num2words)
"""

from __future__ import annotations

import inspect
import json
import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.makers.zoo_vision import MODELS, PIXELS, TILED, network, tokenizer

TOKENS = 60
TAG = "<ov_genai_image_{}>"
SIZES = ((50, 60), (90, 40), (33, 130))
"""The heights and widths of the images."""
PROMPTS = {
    "none": "<|im_start|>user\nHello! What do you see?<|im_end|>\n<|im_start|>assistant\n",
    "one": f"<|im_start|>user\n{TAG.format(0)}What do you see?<|im_end|>\n<|im_start|>assistant\n",
    "two": f"<|im_start|>user\n{TAG.format(1)}{TAG.format(0)}Which colors?<|im_end|>\n<|im_start|>assistant\n",
    "turns": (
        f"<|im_start|>user\nDescribe {TAG.format(2)} the images.<|im_end|>\n"
        "<|im_start|>assistant\nThank you.<|im_end|>\n"
        f"<|im_start|>user\nWhich colors?{TAG.format(1)}<|im_end|>\n<|im_start|>assistant\n"
    ),
}
"""The prompts by the number of images; tags are openvino_genai's."""
VIDEO = 5, 48, 64
"""The number of frames, height and width of the video, whose size none of Qwen's processors changes."""
SECONDS, TIMES = 2.5, (0.0, 0.5, 1.0, 1.5, 2.0)
"""The video's length, and the times of its frames."""
TIMED = "qwen3_vl", "qwen3_5", "qwen3_5_moe"
"""Qwen's families whose prompts contain the times of the frames."""
GEMMA4 = "gemma4", "gemma4-moe", "gemma4_unified"
VIDEOS = "qwen2_vl", "qwen2_5_vl", *TIMED, *GEMMA4, "smolvlm"
"""Models with a recorded video."""
VIDEO_TAG = TAG.format(len(SIZES))
VIDEO_PROMPTS = {
    "video": f"<|im_start|>user\n{VIDEO_TAG}What do you see?<|im_end|>\n<|im_start|>assistant\n",
    "mixed": f"<|im_start|>user\n{TAG.format(0)}{VIDEO_TAG}Which colors?{VIDEO_TAG}<|im_end|>\n<|im_start|>assistant\n",
}
FRAMES = {
    "llava": ("", "<image>", "\n"),
    "llava_next": ("", "<image>", "\n"),
    "qwen2_vl": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    "qwen2_5_vl": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    "qwen3_vl": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    "gemma3": ("\n\n<start_of_image>", "<image_soft_token>", "<end_of_image>\n\n"),
    "gemma4": ("<|image>", "<|image|>", "<image|>"),
    "gemma4_unified": ("<|image>", "<|image|>", "<image|>"),
    "qwen3_5": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    "qwen3_5_moe": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    "glm4v": ("<|begin_of_image|>", "<|image|>", "<|end_of_image|>"),
    "glm_ocr": ("<|begin_of_image|>", "<|image|>", "<|end_of_image|>"),
    "paddleocr_vl": ("<|IMAGE_START|>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_END|>"),
    "internvl": ("<img>", "<IMG_CONTEXT>", "</img>\n"),
}
"""What becomes of a tag in each family: a text in front of an image, the token of each position, and a text after it.

Other families also have texts within an image.
"""
MARKED = {"gemma3": "token_type_ids", "gemma4": "mm_token_type_ids", "gemma4_unified": "mm_token_type_ids"}
"""Inputs that are 1 for tokens of images, 2 for those of videos, and 0 for others."""


def pixels(number: int, size: tuple[int, int] = (0, 0)) -> bytes:
    """Returns an image of a colour that changes along both sides, with noise."""
    height, width = SIZES[number] if number < len(SIZES) else size
    dice = random.Random(number)
    base, down, across = ([dice.randrange(256) for _ in range(3)] for _ in range(3))
    return bytes(
        (base[c] + down[c] * y // height + across[c] * x // width + dice.randrange(40)) % 256
        for y in range(height)
        for x in range(width)
        for c in range(3)
    )


def answer(name: str, model: Any, words: Any, prompt: str) -> tuple[int, list[int], list[float]]:
    """Returns the prompt's number of tokens, the answer's tokens and their log probabilities, computed without a
    cache."""
    import numpy as np
    import torch

    kind = name.partition("-")[0]
    numbers = [n for n in (0, 1, 2) for _ in range(prompt.count(TAG.format(n)))]
    numbers.sort(key=lambda n: prompt.index(TAG.format(n)))
    images = [np.frombuffer(pixels(n), np.uint8).reshape(*SIZES[n], 3) for n in numbers]
    inputs, texts = _shown(name, model, images) if images else ({}, [])
    for n, text in zip(numbers, texts, strict=True):
        prompt = prompt.replace(TAG.format(n), text)
    if count := prompt.count(VIDEO_TAG):
        found, text = _video_inputs(name)
        prompt = prompt.replace(VIDEO_TAG, text)
        for key, value in found.items():  # SmolVLM has images and frames in one tensor, with those of a prompt in a row
            before = [inputs[key]] if key in inputs else []
            inputs[key] = torch.cat(before + [value] * count, int(name == "smolvlm"))
    ids, logprobs = words.encode(prompt, add_special_tokens=False), list[float]()
    length = len(ids)
    rope = getattr(model.model, "get_rope_index", None)
    typed = rope is not None and "mm_token_type_ids" in inspect.signature(rope).parameters
    marked = "mm_token_type_ids" if typed else MARKED.get(kind)
    with torch.no_grad():
        for _ in range(TOKENS):
            if marked is not None:
                image, film = words.convert_tokens_to_ids([FRAMES[kind][1], "<|video_pad|>"])
                marks = torch.tensor([ids])
                inputs[marked] = (marks == image).long() + 2 * (marks == film).long()
            asked = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}
            line = model(**asked, use_cache=False, **inputs).logits[0, -1].double().log_softmax(-1)
            ids.append(int(line.argmax()))
            logprobs.append(round(float(line.max()), 4))
    return length, ids[length:], logprobs


def video() -> bytes:
    """Returns the frames of the video."""
    count, *size = VIDEO
    return b"".join(pixels(number, (size[0], size[1])) for number in range(len(SIZES), len(SIZES) + count))


def _video_inputs(name: str) -> tuple[dict[str, Any], str]:
    """Returns the model's inputs for the video, and the text that stands for it."""
    import numpy as np

    frames = list(np.frombuffer(video(), np.uint8).reshape(*VIDEO, 3))
    if name == "smolvlm":
        return _smolvlm_video(frames)
    return _gemma4_video(name, frames) if name in GEMMA4 else _qwen_video(name, frames)


def _smolvlm_video(frames: list[Any]) -> tuple[dict[str, Any], str]:
    from datetime import timedelta

    from num2words import num2words
    from transformers.models.smolvlm import processing_smolvlm as texts

    inputs = dict(image_processor("smolvlm")(images=[frames], do_image_splitting=False, return_tensors="pt"))
    length = str(timedelta(seconds=int(SECONDS)))
    text = texts.DEFAULT_VIDEO_INTRO.format(frame_count=num2words(len(frames)), video_duration=length)
    for second in TIMES:
        text += texts.FRAME_TIMESTAMP_MESSAGE.format(timestamp=f"00:{int(second):02d}")
        text += texts.get_image_prompt_string(0, 0, 4, "<fake_token_around_image>", "<image>", "<global-img>")
    return inputs, text + texts.DEFAULT_MEDIA_OUTTRO


def _gemma4_video(name: str, frames: list[Any]) -> tuple[dict[str, Any], str]:
    """Returns the inputs: each frame is an image, which has fewer tokens in a real model."""
    made = dict(image_processor(name)(images=frames, return_tensors="pt"))
    tokens = "<|video_pad|>" * int(made["num_soft_tokens_per_image"][0])
    inputs = {"pixel_values_videos": made["pixel_values"][None], "video_position_ids": made["image_position_ids"][None]}
    return inputs, " ".join(f"00:{int(second):02d} <|image>{tokens}<image|>" for second in TIMES)


def _qwen_video(name: str, frames: list[Any]) -> tuple[dict[str, Any], str]:
    """Returns the inputs. transformers' image processor repeats each image as all frames that share patches; these are
    replaced by the frames of the video."""
    import torch

    made = [image_processor(name)(images=[frame], return_tensors="pt") for frame in [*frames, frames[-1]]]
    patches = [torch.unflatten(one["pixel_values"], 1, (3, 2, -1)) for one in made]
    pairs = [
        torch.stack([first[:, :, 0], second[:, :, 1]], 2)
        for first, second in zip(patches[::2], patches[1::2], strict=True)
    ]
    _, rows, columns = made[0]["image_grid_thw"][0].tolist()
    inputs = {
        "pixel_values_videos": torch.cat(pairs).flatten(1),
        "video_grid_thw": torch.tensor([[len(pairs), rows, columns]]),
    }
    tokens, times = "<|video_pad|>" * (rows * columns // PIXELS[name]["merge_size"] ** 2), [*TIMES, TIMES[-1]]
    if name in TIMED:
        groups = zip(times[::2], times[1::2], strict=True)
        return inputs, "".join(f"<{sum(t) / 2:.1f} seconds><|vision_start|>{tokens}<|vision_end|>" for t in groups)
    if name == "qwen2_5_vl":
        inputs["second_per_grid_ts"] = torch.tensor([2 * SECONDS / len(TIMES)])
    return inputs, f"<|vision_start|>{tokens * len(pairs)}<|vision_end|>"


def _shown(name: str, model: Any, images: list[Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the model's inputs for images, and the texts that stand for them."""
    kind, processor = name.partition("-")[0], image_processor(name)
    if kind in TILED:
        inputs = dict(processor(images=[images], return_row_col_info=True, return_tensors="pt"))
        spelled = import_module(f"transformers.models.{kind}.processing_{kind}").get_image_prompt_string
        grids = zip(inputs.pop("rows")[0], inputs.pop("cols")[0], strict=True)
        words = "<fake_token_around_image>", "<image>", "<global-img>"
        return inputs, [spelled(*grid, 4, *words) for grid in grids]
    if "Pixtral" in PIXELS[name]["image_processor_type"]:
        unit = PIXELS[name]["patch_size"]["height"] * MODELS[name].get("spatial_merge_size", 1)
        inputs = dict(processor(images=images, patch_size={"height": unit, "width": unit}, return_tensors="pt"))
        sizes = [(height // unit, width // unit) for height, width in inputs["image_sizes"].tolist()]
        token, line, end = ("<|image_pad|>", "", "") if kind == "lighton_ocr" else ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
        return inputs, [line.join([token * width] * height) + end for height, width in sizes]
    if kind == "lfm2_vl":
        return _lfm2_images(processor, images)
    inputs = dict(processor(images=images, return_tensors="pt"))
    inputs.pop("num_crops", None)
    before, token, behind = FRAMES[kind]
    return inputs, [before + token * count + behind for count in _counts(name, model, inputs)]


def _lfm2_images(processor: Any, images: list[Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the inputs and texts of LFM2-VL. Its processor is made to scale with Pillow."""
    import numpy as np
    import torch
    from PIL import Image
    from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor

    def resize(self: Any, batch: Any, size: Any, **_: Any) -> Any:
        scaled = [Image.fromarray(one.permute(1, 2, 0).numpy()) for one in batch]
        scaled = [one.resize((size.width, size.height), Image.Resampling.BILINEAR) for one in scaled]
        return torch.stack([torch.from_numpy(np.array(one)).permute(2, 0, 1) for one in scaled])

    type(processor).__mro__[1].resize = resize
    inputs = dict(processor(images=[images], return_row_col_info=True, return_tensors="pt"))
    names = {"image": "<image>", "image_start": "<|image_start|>", "image_end": "<|image_end|>"}
    members = {f"{name}_token": token for name, token in (names | {"image_thumbnail": "<|img_thumbnail|>"}).items()}
    members |= {"image_processor": processor, "__init__": lambda self: None}
    spelled = type("Spelled", (Lfm2VlProcessor,), members)()
    grids = [inputs.pop(f"image_{part}") for part in ("rows", "cols", "sizes")]
    texts = list[str]()
    for number, image in enumerate(images):
        parts = (part[number : number + 1] for part in grids)
        texts += spelled.expand_text_with_placeholders(["<image>"], [[image]], *parts, True)
    return inputs, texts


def image_processor(name: str) -> Any:
    """Returns a family's image processor of transformers with Pillow."""
    import transformers

    fields = dict(PIXELS[name])
    if "merge_size" in fields and "size" in fields:  # older versions do not read it
        fields |= {"min_pixels": fields["size"]["shortest_edge"], "max_pixels": fields["size"]["longest_edge"]}
    kind = fields.pop("image_processor_type").removesuffix("Fast")
    if "Unified" in kind:  # needs torchvision, and makes patches of the same pixels
        kind = kind.replace("Unified", "")
        fields |= {"patch_size": fields["patch_size"] * fields["pooling_kernel_size"], "pooling_kernel_size": 1}
    return (getattr(transformers, f"{kind}Pil", None) or getattr(transformers, kind))(**fields)


def _counts(name: str, model: Any, inputs: dict[str, Any]) -> list[int]:
    """Returns the number of tokens of each image: that of its grid, or as many as the model makes."""
    import torch

    if "num_soft_tokens_per_image" in inputs:
        return [int(count) for count in inputs.pop("num_soft_tokens_per_image")]
    if "num_patches" in inputs:
        return [int(tiles) * MODELS[name]["image_seq_length"] for tiles in inputs.pop("num_patches")]
    if "image_grid_thw" in inputs:
        return [int(grid.prod()) // PIXELS[name]["merge_size"] ** 2 for grid in inputs["image_grid_thw"]]
    with torch.no_grad():
        features = model.get_image_features(**inputs)
    return [len(one) for one in getattr(features, "pooler_output", features)]  # an object since transformers 5


def main(argv: list[str]) -> int:
    if not argv or not set(argv[1:]) <= set(MODELS):
        print(__doc__, file=sys.stderr)
        return 2
    file = Path(argv[0]) / "answers.json"
    known = json.loads(file.read_text()) if file.is_file() else {}
    words = tokenizer()
    for name in argv[1:] or MODELS:
        model = network(name)
        for buffer, values in model.named_buffers():
            if buffer.endswith("inv_freq") and "visual" not in buffer:  # the files have these in 16 bits
                values.copy_(values.half())
        prompts = PROMPTS | (VIDEO_PROMPTS if name in VIDEOS else {})
        known[name] = {kind: answer(name, model, words, prompt) for kind, prompt in prompts.items()}
        print(name, {kind: (length, len(set(ids))) for kind, (length, ids, _) in known[name].items()}, flush=True)
    lines = [f"{json.dumps(each)}: {json.dumps(known[each], separators=(',', ':'))}" for each in sorted(known)]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

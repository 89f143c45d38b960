"""python -m tests.makers.make_vision_model [folder] makes tests/data/colours, a small LLaVA that names colours.

It is trained here in about four minutes on one core, with plain images of eight colours. A conversation has zero to
three images anywhere, and each answer names the colours of all images so far, in order. So a test sees which image
reached the model, and where.
A picture takes 16 tokens and a line break, whatever its size.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

import openvino as ov
import torch
from openvino_tokenizers import convert_tokenizer
from optimum.intel import OVModelForVisualCausalLM, OVWeightQuantizationConfig
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

STEPS, BATCH, SEED = 900, 32, 5
SIDE, PATCH = 32, 8
IMAGE_TOKENS = (SIDE // PATCH) ** 2
CONTEXT = 1024
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<pad>"]
COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 170, 50),
    "blue": (40, 60, 220),
    "yellow": (240, 220, 40),
    "black": (15, 15, 15),
    "white": (240, 240, 240),
    "purple": (140, 40, 170),
    "orange": (245, 140, 20),
}
QUESTIONS = (
    "What do you see?",
    "describe",
    "Describe the images.",
    "What is in this image?",
    "What color is it?",
    "Name the colors.",
    "Which colors are these?",
    "What is on the picture?",
)
TEXT_ONLY = {"Hello!": "Hello!", "Hi": "Hello!", "What can you do?": "I name the colors of images."}
NOTHING = "I see no image."
SYSTEMS = ("You are a helpful assistant.", "Be brief.", "You name colors.")
TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}"
    "{%- else -%}{%- for part in message.content if part.type == 'text' -%}{{- part.text -}}{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
PICTURE = "<image>" * IMAGE_TOKENS + "\n"
"""The text that openvino_genai makes of a tag."""
KEPT = (
    "openvino_language_model",
    "openvino_text_embeddings_model",
    "openvino_vision_embeddings_model",
    "openvino_tokenizer",
    "openvino_detokenizer",
)


def said(colours: list[str]) -> str:
    """Returns the answer of the model."""
    if not colours:
        return NOTHING
    return f"The image is {colours[0]}." if len(colours) == 1 else f"The images are {' and '.join(colours)}."


def placed(draw: random.Random, images: int, question: str) -> str:
    """Returns a user's turn with its images where clients put them."""
    tags = [PICTURE] * images
    way = draw.randrange(5)
    if way == 0:
        return "".join(tags) + question
    if way == 1:
        return "".join(tag + "\n" for tag in tags) + question
    if way == 2:
        return question + "\n" + "\n".join(tags)
    if way == 3 or images < 2:
        return question + "".join(tags)
    return tags[0] + "\n" + question + "\n" + "\n".join(tags[1:])


def dialog(draw: random.Random) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns turns as role and text, and the colours of all images in order."""
    turns = [("system", draw.choice(SYSTEMS))] if draw.random() < 0.3 else []
    if draw.random() < 0.1:
        question, answer = draw.choice(list(TEXT_ONLY.items()))
        return [*turns, ("user", question), ("assistant", answer)], []
    shown: list[str] = []
    for _ in range(1 if draw.random() < 0.65 else 2):
        count = draw.choice((0, 1, 1, 2, 2, 3)) if not shown else draw.choice((0, 1, 2))
        new = [draw.choice(list(COLOURS)) for _ in range(min(count, 3 - len(shown)))]
        shown += new
        turns.append(("user", placed(draw, len(new), draw.choice(QUESTIONS))))
        turns.append(("assistant", said(shown)))
    return turns, shown


def picture(draw: random.Random, colour: str) -> torch.Tensor:
    """Returns 3 x SIDE x SIDE in [-1, 1], like the image processor: approximately a colour, with noise."""
    base = torch.tensor([min(255, max(0, c + draw.uniform(-12, 12))) for c in COLOURS[colour]])
    noise = torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(draw.getrandbits(31)))
    return ((base[:, None, None] + noise * draw.uniform(0, 12)).clamp(0, 255) / 255 - 0.5) / 0.5


def make_tokenizer() -> PreTrainedTokenizerFast:
    texts = [*QUESTIONS, *TEXT_ONLY, *TEXT_ONLY.values(), NOTHING, *SYSTEMS, "system", "user", "assistant"]
    texts += [said([a, b]) for a in COLOURS for b in COLOURS] + [said([a]) for a in COLOURS]
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False),
    )
    learner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=learner,
        eos_token="<|im_end|>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": "<image>"},
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
    vision = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=64,
        initializer_factor=1.0,
    )
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        initializer_range=0.05,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=IMAGE_TOKENS,
        vision_feature_select_strategy="default",
        vision_feature_layer=-2,
    )
    model = LlavaForConditionalGeneration(config)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "do_sample": False}
    model.generation_config.update(**ends)
    return model


def batch(tokenizer: PreTrainedTokenizerFast, draw: random.Random) -> dict[str, torch.Tensor]:
    """Returns a batch in which only answers are learned."""
    rows, images = [], []
    for _ in range(BATCH):
        turns, shown = dialog(draw)
        images += [picture(draw, colour) for colour in shown]
        ids: list[int] = []
        labels: list[int] = []
        for role, text in turns:
            head = tokenizer.encode(f"<|im_start|>{role}\n", add_special_tokens=False)
            body = tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)
            tail = tokenizer.encode("\n", add_special_tokens=False)
            ids += head + body + tail
            labels += [-100] * len(head) + (body if role == "assistant" else [-100] * len(body)) + [-100] * len(tail)
        rows.append((ids, labels))
    longest = max(len(ids) for ids, _ in rows)
    pad = tokenizer.pad_token_id
    return {
        "input_ids": torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in rows]),
        "labels": torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in rows]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows]),
        "pixel_values": torch.stack(images),
    }


def train(model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, steps: int) -> None:
    draw = random.Random(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        loss = model(**batch(tokenizer, draw)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 25 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def save(model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, target: Path) -> int:
    """Writes what the engine and the server read. Returns its size in bytes."""
    processor = LlavaProcessor(
        CLIPImageProcessor(
            size={"shortest_edge": SIDE},
            crop_size={"height": SIDE, "width": SIDE},
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
        ),
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, exported = Path(folder, "checkpoint"), Path(folder, "exported")
        model.save_pretrained(checkpoint)
        processor.save_pretrained(checkpoint)
        OVModelForVisualCausalLM.from_pretrained(
            checkpoint, export=True, quantization_config=OVWeightQuantizationConfig(bits=8, sym=False), compile=False
        ).save_pretrained(exported)
        add_processor(processor, exported)
        target.mkdir(parents=True, exist_ok=True)
        for name in [f"{part}.{end}" for part in KEPT for end in ("xml", "bin")]:
            if (exported / name).exists():
                shutil.copyfile(exported / name, target / name)
        for name in ("config.json", "generation_config.json", "preprocessor_config.json"):
            shutil.copyfile(exported / name, target / name)
    (target / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return sum(path.stat().st_size for path in target.iterdir())


def add_processor(processor: LlavaProcessor, folder: Path) -> None:
    """Writes preprocessor_config.json, if the exporter has not, and the tokenizer as models."""
    if not (folder / "preprocessor_config.json").exists():
        settings = processor.image_processor.to_dict()
        (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    parts = convert_tokenizer(processor.tokenizer, with_detokenizer=True, skip_special_tokens=True)
    for part, kind in zip(parts, ("tokenizer", "detokenizer"), strict=True):
        ov.save_model(part, folder / f"openvino_{kind}.xml")


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2] / "tests" / "data" / "colours")
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    train(model, tokenizer, int(sys.argv[2]) if len(sys.argv) > 2 else STEPS)
    model.eval()
    print(f"{save(model, tokenizer, target):,} bytes in {target}")


if __name__ == "__main__":
    main()

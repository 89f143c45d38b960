"""Tiny models with vision and random weights, one of each family, as OpenVINO IR: fixtures of tests/data/zoo_vision.

Each is a NAME.tar.xz with config.json, preprocessor_config.json and the networks that optimum-intel exports. Weights
are multiples of 1/16, as in tests/makers/zoo.py. Those of vision are large, so that answers differ between images. All
models have the tokenizer in tokenizer.tar.xz.

python -m tests.makers.zoo_vision DIR [NAME...]   (needs torch, transformers and optimum-intel)
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.makers.zoo import pack

VOCAB = 384
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 4,
    "tie_word_embeddings": False,
}
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<pad>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<start_of_image>", "<end_of_image>", "<image_soft_token>", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    *("<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<row_1_col_2>", "<row_2_col_1>", "<row_2_col_2>"),
    *("<img>", "</img>", "<IMG_CONTEXT>"),
)
"""The first tokens of the tokenizer that all models share, including those for images in all families."""
TEXTS = (
    "What do you see?",
    "Describe the images.",
    "Which colors are these?",
    "user",
    "assistant",
    "Hello! Thank you.",
)
IDS = {text: number for number, text in enumerate(SPECIAL)}
LATER, FIRST_LATER = ("<|image>", "<|image|>", "<image|>"), 337
"""The last tokens of the tokenizer, also for images, and the id of the first of these."""
TILED = "idefics3", "smolvlm"
_DATA: dict[str, dict[str, dict[str, Any]]] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
MODELS = _DATA["models"]
"""The configuration of each model by transformers' model_type; the part after a "-" distinguishes variants.

Made with optimum-intel 2.2.0 and transformers 4.57.6, except Qwen3.5 (5.2.0), Gemma 4 (5.5.4) and its unified kind
(5.10.4). The answers of torch are from the same versions, except idefics3 (5.2.0) and smolvlm (5.23.0), to whose
patches 4.57.6 gives wrong positions.
"""
PIXELS = _DATA["pixels"]
"""The preprocessor_config.json of each model."""
LOUD = {"multi_modal_projector": 3.0, "merger": 3.0, "connector": 3.0, "embed_vision": 3.0}
"""Factors for the weights of these parts, because a tiny encoder's output is small compared with the text
embeddings."""


PLAIN: dict[str, dict[str, Any]] = {
    name: {**fields, "image_newline": [0.0] * 64} if name == "llava_next" else fields for name, fields in MODELS.items()
}
"""The part of config.json that images need."""


def tokenizer() -> Any:
    """Returns a byte-level BPE."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, initial_alphabet=alphabet, special_tokens=[*SPECIAL], show_progress=False
    )
    learner.train_from_iterator(TEXTS, trainer)
    learner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (*SPECIAL, *LATER)])
    assert learner.token_to_id(LATER[0]) == FIRST_LATER
    return PreTrainedTokenizerFast(
        tokenizer_object=learner, eos_token="<|im_end|>", pad_token="<pad>", clean_up_tokenization_spaces=False
    )


def make_tokenizer(target: Path) -> None:
    """Writes tokenizer.tar.xz into the folder."""
    import openvino as ov
    from openvino_tokenizers import convert_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        for name, converted in zip(
            ("tokenizer", "detokenizer"), convert_tokenizer(tokenizer(), with_detokenizer=True), strict=True
        ):
            ov.save_model(converted, Path(folder) / f"openvino_{name}.xml")
        pack(sorted(Path(folder).iterdir()), target / "tokenizer.tar.xz")


def network(name: str) -> Any:
    """Returns the model in torch. With the same versions of torch and transformers, the weights are always the same."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(1)
    config = AutoConfig.for_model(name.partition("-")[0], **MODELS[name])
    model = AutoModelForImageTextToText.from_config(config).float().eval()
    if name in TILED:  # transformers 5 creates their weights in another order than 4
        torch.manual_seed(1)
    with torch.no_grad():
        for part, weights in model.named_parameters():
            visual = name in TILED or "vision_tower" in part or "visual" in part
            if (visual or not weights.any()) and weights.ndim > 1:  # Gemma's projection is all zeros
                weights.normal_(std=0.2)
            for loud, factor in LOUD.items():
                weights.mul_(factor if loud in part and weights.ndim > 1 else 1)
            weights.copy_((weights * 16).round() / 16)
        model.lm_head.weight[: len(SPECIAL)] = 0  # otherwise the models would generate tokens that stand for images
        if name.startswith("gemma4"):
            model.lm_head.weight[FIRST_LATER : FIRST_LATER + len(LATER)] = 0
    return model


def make(name: str, target: Path) -> None:
    """Writes NAME.tar.xz into the folder."""
    import openvino as ov
    from optimum.intel.openvino import OVModelForVisualCausalLM

    model = network(name)
    with tempfile.TemporaryDirectory() as folder:
        source, exported, small = (Path(folder) / part for part in ("torch", "exported", "small"))
        model.save_pretrained(source)
        (source / "preprocessor_config.json").write_text(json.dumps(PIXELS[name]))
        OVModelForVisualCausalLM.from_pretrained(
            source, export=True, load_in_8bit=False, compile=False
        ).save_pretrained(exported)
        small.mkdir()
        for path in sorted(exported.glob("openvino_*.xml")):
            ov.save_model(ov.Core().read_model(path), small / path.name, compress_to_fp16=True)
        (small / "config.json").write_text((exported / "config.json").read_text())
        (small / "preprocessor_config.json").write_text(json.dumps(PIXELS[name]))
        pack(sorted(small.iterdir()), target / f"{name}.tar.xz")


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(MODELS):
        sys.exit(__doc__)
    os.environ["HF_HUB_OFFLINE"] = "1"
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(folder)
    for each in sys.argv[2:] or MODELS:
        make(each, folder)

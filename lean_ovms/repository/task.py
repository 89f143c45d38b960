"""What a model directory is for, from the JSON files that exporters leave in it.

The rules are OVMS's, which serves other tasks as well, except that "…Model" counts as an embeddings model only without
a generation_config.json (GPT2LMHeadModel and ChatGLMModel write texts).
https://github.com/openvinotoolkit/model_server/blob/main/src/default_task_detector.cpp
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SERVED = "text_generation"
AMBIGUOUS = ("Qwen3ForCausalLM",)
"""The directory's name decides about these."""

SPEECH_TO_TEXT = ("WhisperForConditionalGeneration", "Qwen3ASRForConditionalGeneration")
IMAGES = ("CLIPTextModel", "UNet2DConditionModel", "AutoencoderKL")
EMBEDDINGS = (
    "BertModel", "JinaBertModel", "MPNetModel", "Qwen2Model", "RobertaModel", "T5EncoderModel", "XLMRobertaModel",
)  # fmt: skip
CHATS = ("InternVLChatModel",)


def detect(path: Path) -> str:
    """The task in OVMS's words; "" when nothing tells."""
    config = _json(path / "config.json")
    config = config if isinstance(config, dict) else {}
    names = [name for name in config.get("architectures") or () if isinstance(name, str)]
    modules = _module_types(path)
    if any(name in SPEECH_TO_TEXT or name.startswith("SeamlessM4T") for name in names):
        return "speech2text"
    if any(name.endswith("ForTextToSpeech") or name == "ParlerTTSForConditionalGeneration" for name in names) or (
        "n_mels" in config and not names
    ):
        return "text2speech"
    if _reranks(path, names, modules):
        return "rerank"
    if _draws(path, names):
        return "image_generation"
    if _embeds(path, names, modules):
        return "embeddings"
    return SERVED if any(_generates(name) for name in names) else ""


def _reranks(path: Path, names: list[str], modules: list[str]) -> bool:
    return (
        any("LogitScore" in kind or "CrossEncoder" in kind for kind in modules)
        or any(name.endswith("ForSequenceClassification") for name in names)
        or (not modules and _called(path, names, "rerank"))
    )


def _draws(path: Path, names: list[str]) -> bool:
    index = _json(path / "model_index.json")
    kind = index.get("_class_name") if isinstance(index, dict) else None
    return any(name in IMAGES or name.endswith("Transformer2DModel") for name in names) or (
        isinstance(kind, str) and ("StableDiffusion" in kind or "Flux" in kind)
    )


def _embeds(path: Path, names: list[str], modules: list[str]) -> bool:
    def by_suffix(name: str) -> bool:
        return name.endswith("Model") and name not in CHATS and not (path / "generation_config.json").is_file()

    return (
        any("Pooling" in kind for kind in modules)
        or any(name in EMBEDDINGS or by_suffix(name) for name in names)
        or (not modules and _called(path, names, "embed"))
    )


def _generates(name: str) -> bool:
    return name in CHATS or name.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))


def _called(path: Path, names: list[str], word: str) -> bool:
    return any(name in AMBIGUOUS for name in names) and word in path.resolve().name.lower()


def _module_types(path: Path) -> list[str]:
    """The kinds of module in sentence-transformers' modules.json."""

    def kinds() -> Iterator[str]:
        found = _json(path / "modules.json")
        for module in found if isinstance(found, list) else ():
            kind = module.get("type") if isinstance(module, dict) else None
            if isinstance(kind, str):
                yield kind

    return list(kinds())


def _json(file: Path) -> Any:
    """What the file holds; None if there is none, or it cannot be understood, of which others tell."""
    try:
        return json.loads(file.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return None

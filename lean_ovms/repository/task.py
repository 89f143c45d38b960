"""The tasks of OVMS and ours: their graph calculators, and how a model directory of one is recognized.

A new task is one row of TASKS, its name in `config.SERVED_TASKS`, and the options of its calculator in
`graph_schema.py`. The rules are OVMS's, except that "…Model" counts as an embeddings model only without a
generation_config.json (GPT2LMHeadModel and ChatGLMModel generate text), and that a classifier with labels of its own,
or with more than two, is no reranker.
https://github.com/openvinotoolkit/model_server/blob/main/src/default_task_detector.cpp
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import IMAGE_GENERATION, SPEECH_TO_TEXT
from . import gguf, json_file

AMBIGUOUS = ("Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration")
"""Architectures of several tasks: the directory's name decides, and for embeddings the network's inputs."""
NETWORK, NETWORK_HEAD = "openvino_model.xml", 1 << 16
"""A network, and as many bytes of it as have the layers of its inputs."""
RERANKS = 4
"""The pooling type of rerankers in GGUF files."""
RERANK_LABELS = 2
"""A classifier of more labels does not rerank."""

SPEECH_MODELS = ("WhisperForConditionalGeneration", "Qwen3ASRForConditionalGeneration")
FUN_ASR = "fun_asr"
"""Fun-ASR's model_type; its config.json has no architectures."""
IMAGES = ("CLIPTextModel", "UNet2DConditionModel", "AutoencoderKL")
EMBEDDINGS = (
    "BertModel", "JinaBertModel", "MPNetModel", "Qwen2Model", "RobertaModel", "T5EncoderModel", "XLMRobertaModel",
)  # fmt: skip
CHATS = ("InternVLChatModel",)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files that exporters leave in a model directory, as far as they show its task.

    architectures: of config.json. modules: the types in sentence-transformers' modules.json.
    """

    path: Path
    config: dict[str, Any]
    architectures: list[str]
    modules: list[str]

    def is_of(self, *ends: str) -> bool:
        """Returns whether an architecture's name ends so."""
        return any(name.endswith(ends) for name in self.architectures)


@dataclass(frozen=True, slots=True)
class ModelTask:
    """A task of models. name: OVMS's, or ours for a task that it does not have. matches: whether a model directory is
    of this task. calculators: names of its graph nodes, the first is the one to write. options: the message of its node
    options in `graph_schema`; "" if it has none."""

    name: str
    matches: Callable[[ModelFiles], bool]
    calculators: tuple[str, ...]
    options: str = ""


def detect(path: Path) -> str:
    """Returns the name of the task of a model directory; "" if its files do not show it."""
    if gguf.is_gguf(path):
        return _of_gguf(path)
    files = _files(path)
    return next((task.name for task in TASKS if task.matches(files)), "")


def of_calculators(names: Iterable[str]) -> tuple[ModelTask, str] | None:
    """Returns the task of a graph with these calculators, and the calculator that shows it."""
    return next(((task, name) for name in names for task in TASKS if name in task.calculators), None)


def _of_gguf(path: Path) -> str:
    """Returns the name of the task of a GGUF file, whose architecture also embedding models have."""
    try:
        pooling = gguf.pooling_type(path)
    except (OSError, ValueError, gguf.Malformed):
        return ""  # loading it says what is wrong
    return {0: TEXT_GENERATION.name, RERANKS: "rerank"}.get(pooling, "embeddings")


def _files(path: Path) -> ModelFiles:
    config = json_file.read_object(path / "config.json")
    names = [name for name in config.get("architectures") or () if isinstance(name, str)]
    modules = json_file.read_or_none(path / "modules.json")
    kinds = [entry.get("type") for entry in modules if isinstance(entry, dict)] if isinstance(modules, list) else []
    return ModelFiles(path, config, names, [kind for kind in kinds if isinstance(kind, str)])


def _is_speech_to_text(files: ModelFiles) -> bool:
    return files.config.get("model_type") == FUN_ASR or any(
        name in SPEECH_MODELS or name.startswith("SeamlessM4T") for name in files.architectures
    )


def _is_text_to_speech(files: ModelFiles) -> bool:
    named = files.is_of("ForTextToSpeech") or "ParlerTTSForConditionalGeneration" in files.architectures
    return named or ("n_mels" in files.config and not files.architectures)


def _is_classifier(files: ModelFiles) -> bool:
    """Returns whether the model is a sequence classifier with labels that mean something, or too many for a score."""
    labels = files.config.get("id2label")
    names = list(labels.values()) if isinstance(labels, dict) else []
    named = any(not re.fullmatch(r"LABEL_\d+", str(name)) for name in names)
    return (
        files.is_of("ForSequenceClassification")
        and not _scores(files)
        and (len(names) > RERANK_LABELS or (named and len(names) > 1))
    )


def _scores(files: ModelFiles) -> bool:
    return any("LogitScore" in kind or "CrossEncoder" in kind for kind in files.modules)


def _is_reranker(files: ModelFiles) -> bool:
    named = not files.modules and _is_named(files, "rerank")
    return named or _scores(files) or files.is_of("ForSequenceClassification")


def _is_image_model(files: ModelFiles) -> bool:
    kind = json_file.read_object(files.path / "model_index.json").get("_class_name")
    named = files.is_of("Transformer2DModel") or any(name in IMAGES for name in files.architectures)
    return named or (isinstance(kind, str) and ("StableDiffusion" in kind or "Flux" in kind))


def _is_embedding_model(files: ModelFiles) -> bool:
    def by_suffix(name: str) -> bool:
        return name.endswith("Model") and name not in CHATS and not (files.path / "generation_config.json").is_file()

    return (
        any("Pooling" in kind for kind in files.modules)
        or any(name in EMBEDDINGS or by_suffix(name) for name in files.architectures)
        or (not files.modules and (_is_named(files, "embed") or _is_headless(files)))
    )


def _is_headless(files: ModelFiles) -> bool:
    """Returns whether an ambiguous model was exported without what generates text: the network takes no beam_idx."""
    if not any(name in AMBIGUOUS for name in files.architectures):
        return False
    try:
        with open(files.path / NETWORK, "rb") as file:
            head = file.read(NETWORK_HEAD)
    except OSError:
        return False
    return b'"input_ids"' in head and b'"beam_idx"' not in head


def _is_text_generator(files: ModelFiles) -> bool:
    return files.is_of("ForCausalLM", "ForConditionalGeneration", "LMHeadModel") or any(
        name in CHATS for name in files.architectures
    )


def _is_named(files: ModelFiles, word: str) -> bool:
    return any(name in AMBIGUOUS for name in files.architectures) and word in files.path.resolve().name.lower()


TEXT_GENERATION = ModelTask(
    "text_generation", _is_text_generator, ("HttpLLMCalculator", "LLMCalculator"), "LLMCalculatorOptions"
)
TASKS = (
    ModelTask(SPEECH_TO_TEXT, _is_speech_to_text, ("S2tCalculator",), "S2tCalculatorOptions"),
    ModelTask("text2speech", _is_text_to_speech, ("T2sCalculator",), "T2sCalculatorOptions"),
    ModelTask("classify", _is_classifier, ()),
    ModelTask("token_classify", lambda files: files.is_of("ForTokenClassification"), ()),
    ModelTask("rerank", _is_reranker, ("RerankCalculatorOV", "RerankCalculator"), "RerankCalculatorOVOptions"),
    ModelTask(IMAGE_GENERATION, _is_image_model, ("ImageGenCalculator",), "ImageGenCalculatorOptions"),
    ModelTask(
        "embeddings",
        _is_embedding_model,
        ("EmbeddingsCalculatorOV", "EmbeddingsCalculator"),
        "EmbeddingsCalculatorOVOptions",
    ),
    TEXT_GENERATION,
)
"""All tasks, in the order in which they are tried."""

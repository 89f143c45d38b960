"""Decides from the options and the model's files whether the paged engine can serve a model, and explains failures.

It also reads from the options which source drafts tokens, as far as every pipeline needs it. It loads nothing, and does
not import openvino.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...config import EngineConfig
from ...config.options import PROPERTIES
from ...errors import StartError, last_line
from ...manifest import DRAFT_SETTINGS, GENAI_ADAPTERS, GRAMMARS
from ...repository import model_config, model_file
from ...repository.model_config import TALKER, TEXT_EMBEDDINGS, TEXT_MODEL, TOKENIZERS
from ...util.resources import free_memory_bytes, lacks_thread, with_memory_limit, with_thread_limits

log = logging.getLogger(__name__)

VISION_FILES = (TEXT_EMBEDDINGS, "openvino_vision_embeddings_model.xml")
PAGED = "PAGED"
"""The paged engine, as a value of --pipeline_type."""
PROVEN = frozenset(
    (
        *("afmoe", "arcee", "cohere", "cohere2", "exaone4", "falcon", "gemma", "gemma2", "gemma3_text", "glm"),
        *("glm4", "gpt_neox", "gpt_oss", "granite", "granitemoe", "granitemoehybrid", "hunyuan_v1_dense", "lfm2"),
        *("lfm2_moe", "llama", "mistral", "mixtral", "olmo", "olmo2", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3"),
        *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "smollm3", "stablelm", "starcoder2"),
    )
)
"""Architectures (model_type of config.json) whose tokens and log probabilities were shown to equal those of
transformers on tiny models: tests/engine/paged/test_zoo.py."""
PROVEN_VISION = frozenset(
    (
        *("gemma3", "gemma4", "gemma4_unified", "idefics3", "llava", "llava_next", "mistral3", "qwen2_5_vl"),
        *("qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "smolvlm"),
    )
)
"""Architectures of models with vision that were shown to equal transformers in the same way (test_zoo_vision.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """The source of draft tokens; by default there is none."""

    model: Path | None = None
    """The directory or file of a draft model, or of a draft head for the model; None for none."""
    device: str = ""
    """The device of the draft model; empty for that of the main model."""
    cache_gb: int = 0
    """The size of the draft model's own KV cache in GB; 0 for as many blocks as the main model has."""
    step_tokens: int = 0
    """The most tokens that the draft model computes in one step; 0 for the same as the main model."""
    max_sequences: int = 0
    """The most sequences of the draft model that run at once; 0 for the same as the main model."""
    eagle3: bool = False
    """Whether the options say that the draft model is an Eagle-3 head of the model."""
    mtp: str = "false"
    """Whether the multi-token prediction head in the model's directory is used: true, false, or auto."""
    lookup: bool = False
    """Whether requests can ask for prompt lookup, which proposes what followed the same tokens earlier in the text."""
    named_by: Mapping[str, str] = field(default_factory=dict)
    """The options at fault if a pipeline fails to load with a message that contains one of these lower-case words."""
    ngrams: bool = False
    """Whether prompt lookup is also used for requests that do not ask for it, if the steps gain by it."""


def drafts_of(config: EngineConfig) -> Drafts:
    """Returns the source of draft tokens that the options select."""
    settings = config.part(DRAFT_SETTINGS)
    found: Drafts = Drafts() if settings is None else settings(config)
    return found


class Choice(NamedTuple):
    """The pipeline for a model, and the reason why it was chosen."""

    pipeline: str
    """The name of the pipeline, a value of --pipeline_type."""
    reason: str
    """The reason, a part of a sentence for the log."""


def unsupported(config: EngineConfig) -> str:
    """Returns what the options and the model need that the paged engine does not support; "" for nothing."""
    drafts, source = drafts_of(config), grammar_source(config)
    lacking, backend = "" if source is None else source.missing, config.composition.backend
    needs = {
        "a DFlash draft model": drafts.model and model_config.is_head(drafts.model, "dflash"),
        f"--draft_device {drafts.device}": drafts.model and drafts.device not in ("", "CPU"),
        **{f"--{name}": config.value(name) for name in (backend.options if backend else ())},
        "a LoRA adapter for all requests": config.wants(GENAI_ADAPTERS),
        lacking: lacking,
        f"--target_device {config.target_device}": config.target_device != "CPU",
    }
    return next((what for what, needed in needs.items() if needed), "")


def grammar_source(config: EngineConfig) -> Any:
    """Returns the engine.paged.parts.GrammarSource of these options; None if the server has no grammars."""
    make = config.part(GRAMMARS)
    return None if make is None else make(config)


def has_vision(model_dir: Path) -> bool:
    """Returns whether the model directory has the networks that turn text and images into embeddings."""
    return all((model_dir / name).is_file() for name in VISION_FILES)


def obstacle(config: EngineConfig) -> str:
    """Returns why AUTO does not select the paged engine; "" if it does. Raises StartError for an unusable file."""
    vision = has_vision(config.model_dir)
    if vision and speaks(config.model_dir):
        return "the model reads and generates audio"
    need = unsupported(config)
    if need:
        return f"the paged engine does not support {need}"
    draft = drafts_of(config).model
    for path in (config.model_dir, *([draft] if draft else ())):
        proven, what = PROVEN, "models"
        if vision and path == config.model_dir:
            proven, what = PROVEN_VISION, "models with vision"
        kind = model_config.model_type(path)  # raises the reason if a file cannot be served
        if kind not in proven and not model_file.is_one(path):
            return f"the paged engine is not tested with {what} of the type {kind}"
    return ""


def speaks(model_dir: Path) -> bool:
    """Returns whether the model directory has the network that turns answers into speech."""
    return (model_dir / TALKER).is_file()


# --- failures

CACHE_OPTIONS = ("kv_cache_precision", "key_cache_precision", "value_cache_precision")
_MEMORY = (
    *("bad_alloc", "out of memory", "cannot allocate", "can't allocate", "not enough memory"),
    "failed to map segment",  # of a library
)
_NO_DEVICE = re.compile(r"Device with .* name is not registered|Cannot load library")


def check_files(config: EngineConfig, model: str = TEXT_MODEL) -> None:
    """Raises StartError if the model lacks its network, of this file name, or another file.

    GenAI's message for a missing file is unclear, and it loads a model without a tokenizer.
    """
    required: list[tuple[Path, str]] = []
    if not model_file.is_one(config.model_dir):
        required += [(config.model_dir, name) for name in (model, *TOKENIZERS)]
    if (draft := drafts_of(config).model) and not model_file.is_one(draft):
        required.append((draft, TEXT_MODEL))
    for folder, name in required:
        if not (folder / name).is_file():
            raise StartError(f"{folder} has no {name}")
    needed, free = model_config.weights_bytes(config.model_dir) + (config.cache_size << 30), free_memory_bytes()
    if config.target_device == "CPU" and needed > free:
        memory = model_config.memory(config.model_dir, free, config.cache_size)
        log.warning("the model may not fit into memory: %s", memory)


def network(model_dir: Path) -> Path:
    return model_dir if model_file.is_one(model_dir) else model_dir / TEXT_MODEL


@contextmanager
def as_start_error(config: EngineConfig) -> Iterator[None]:
    """Turns exceptions of openvino_genai inside the `with` block, which builds a pipeline, into a StartError.

    Its one line names the option at fault. GenAI reports a wrong plugin property only by the property's name.
    """
    try:
        yield
    except (RuntimeError, TypeError, ValueError, MemoryError, IndexError) as error:  # IndexError: an empty output
        raise StartError(_explain(config, last_line(error), str(error).lower())) from error


def _explain(config: EngineConfig, text: str, whole: str) -> str:
    scarce = any(word in whole for word in _MEMORY)
    if _NO_DEVICE.search(text) and not scarce:
        device = drafts_of(config).device or config.target_device
        return f"--target_device {device}: this machine has no such device"
    for option, names in _properties_of(config).items():
        if any(re.search(rf"\b{re.escape(name)}\b", text) for name in names):
            return f"--{option}: {text.removeprefix('NotFound: ')}"
    if option := _option_of(config, whole):
        return f"{option}: {text}"
    if short := model_config.short_file(config.model_dir):
        return short
    if lacks_thread(whole):
        return f"the model does not load: {with_thread_limits(text)}"
    if scarce:
        text = f"{text}; {model_config.memory(config.model_dir, free_memory_bytes(), config.cache_size)}"
    return f"the model does not load: {with_memory_limit(text)}"


def _option_of(config: EngineConfig, whole: str) -> str:
    """Returns the names of the options that OpenVINO's error, in lower case, concerns; "" if they are unknown."""
    for word, option in drafts_of(config).named_by.items():
        if word in whole:
            return option
    caches = [f"--{option}" for option in CACHE_OPTIONS if getattr(config, option) and "kvcache type" in whole]
    return (
        f"{', '.join(caches)}: this CPU does not support this precision; every CPU supports u8, u4 and f32"
        if caches
        else ""
    )


def _properties_of(config: EngineConfig) -> dict[str, list[str]]:
    """Returns the names of the OpenVINO properties that each option sets."""
    plugin = json.loads(config.plugin_config) if config.plugin_config else {}
    by_options = {option: [name] for option, name in PROPERTIES.items() if config.value(option)}
    return {"plugin_config": list(plugin), **by_options}

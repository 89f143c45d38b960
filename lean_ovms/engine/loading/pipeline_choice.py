"""Decides which pipeline serves a model, and says why. Reads files and options, loads nothing.

As in OVMS: a model with vision gets a VLM pipeline and no text pipeline; AUTO means continuous batching, except on an
NPU. AUTO takes the paged engine on the CPU where nothing is in its way.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...config import EngineConfig
from ...errors import StartError
from ...manifest import GENAI_ADAPTERS, GRAMMARS
from ...repository import model_config, model_file
from ...repository.weights import TALKER, TEXT_EMBEDDINGS
from ...types.engine import CAPABILITIES, SPEECH
from . import devices
from .drafts import drafts_of

log = logging.getLogger(__name__)

VISION_FILES = (TEXT_EMBEDDINGS, "openvino_vision_embeddings_model.xml")
TRY_PAGED = "--pipeline_type PAGED on the CPU tries it"
PAGED, CONTINUOUS, STATEFUL, VISION, OMNI = "PAGED", "LM_CB", "LM", "VLM_CB", "OMNI"

PROVEN = frozenset(
    (
        *("afmoe", "arcee", "cohere", "cohere2", "exaone4", "falcon", "gemma", "gemma2", "gemma3_text", "glm"),
        *("glm4", "gpt_neox", "gpt_oss", "granite", "granitemoe", "granitemoehybrid", "hunyuan_v1_dense", "lfm2"),
        *("lfm2_moe", "llama", "mistral", "mixtral", "olmo", "olmo2", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3"),
        *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "smollm3", "stablelm", "starcoder2"),
    )
)
"""Architectures (model_type of config.json) whose tokens and log probabilities are transformers' on tiny models:
tests/engine/paged/test_zoo.py."""
PROVEN_VISION = frozenset(
    (
        *("gemma3", "gemma4", "gemma4_unified", "idefics3", "llava", "llava_next", "mistral3", "qwen2_5_vl"),
        *("qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "smolvlm"),
    )
)
"""The same for models with vision: test_zoo_vision.py."""
MISCOMPUTED = frozenset(("gpt_neo", "granitemoehybrid", "mpt", "qwen3_5_moe_text", "qwen3_5_text"))
"""Those whose tokens are wrong with openvino_genai's continuous batching (2026.4.1): all tokens of a step have one
position (paged.ir_weights), a state is not kept between the steps, or the kind of attention is lost. They are right
with its stateful pipeline."""


class Choice(NamedTuple):
    """The pipeline that computes a model, and the reason."""

    pipeline: str
    """LM, LM_CB, VLM, VLM_CB, OMNI or PAGED."""
    reason: str
    """Why, as a part of a sentence, for the log."""


def choose(config: EngineConfig, available: Sequence[str]) -> Choice:
    """Returns the pipeline that --pipeline_type stands for.

    Args:
        config: The options of the engine.
        available: The devices that OpenVINO finds.

    Raises:
        StartError: The value does not fit the model.
    """
    return _loadable(config, _choose(config, available))


def _loadable(config: EngineConfig, choice: Choice) -> Choice:
    """Raises StartError for a model file that the chosen pipeline of openvino_genai does not load."""
    file = model_file.of(config.model_dir)
    if choice.pipeline != PAGED and file is not None and (wrong := file.only_paged()):
        raise StartError(f"{config.model_dir}: {wrong}; {choice.reason}; {TRY_PAGED}")
    return choice


def _choose(config: EngineConfig, available: Sequence[str]) -> Choice:
    vision, pipeline_type = has_vision(config.model_dir), config.pipeline_type
    if pipeline_type == "ASR":
        raise StartError(f"--pipeline_type ASR: {config.model_dir} transcribes no speech")
    omni = (config.model_dir / TALKER).is_file()
    if pipeline_type == OMNI and not omni:
        raise StartError(f"--pipeline_type OMNI: {config.model_dir} has no {TALKER}")
    if pipeline_type != "AUTO":
        if (pipeline_type.startswith("VLM") or pipeline_type == OMNI) != vision and pipeline_type != PAGED:
            what = "a model with vision" if vision else "a text model"
            raise StartError(f"--pipeline_type {pipeline_type}: {config.model_dir} is {what}")
        wrong = _miscomputed(config) if pipeline_type == CONTINUOUS else ""
        if wrong:
            log.warning("%s; LM and PAGED do not", wrong)
        return Choice(pipeline_type, f"as --pipeline_type says, but {wrong}" if wrong else "as --pipeline_type says")
    if omni and vision:
        return Choice(OMNI, "the model hears and speaks")
    if devices.is_npu(devices.members(config.target_device, available)):
        return Choice("VLM" if vision else "LM", "an NPU computes one request at a time")
    obstacle = _obstacle(config, vision)
    if obstacle and vision:
        return Choice(VISION, obstacle)
    if obstacle:
        return _by_genai(config, obstacle)
    return Choice(PAGED, "nothing in the options or the model needs openvino_genai's pipeline")


def without_paged(config: EngineConfig, reason: str, *, miscounts: bool = False) -> Choice:
    """Returns the choice for a model that the paged engine was to serve and cannot.

    Args:
        config: The engine's configuration.
        reason: What is wrong with the model.
        miscounts: Whether the continuous batching of openvino_genai has the same fault, and does not notice.
    """
    reason = f"the paged engine cannot serve this model: {reason}"
    if has_vision(config.model_dir):
        return Choice(VISION, reason)
    return _loadable(config, Choice(STATEFUL, reason) if miscounts else _by_genai(config, reason))


def untested(config: EngineConfig, choice: Choice) -> bool:
    """Returns whether AUTO chose continuous batching for a text model of a type that was never tested with paged
    attention."""
    genai = config.pipeline_type == "AUTO" and choice.pipeline == CONTINUOUS and not model_file.is_one(config.model_dir)
    return genai and model_config.read(config.model_dir).get("model_type") not in PROVEN


def miscounted(choice: Choice) -> Choice:
    """Returns what is chosen instead of a pipeline that would give all tokens of a step one position."""
    return Choice(STATEFUL, f"{choice.reason}, and LM_CB would give all tokens of a step the same position")


def lost_fields(config: EngineConfig, choice: Choice, capabilities: Collection[str]) -> list[str]:
    """Returns the request fields without effect, because AUTO did not choose the paged engine.

    Args:
        config: The engine's configuration.
        choice: The pipeline that was chosen.
        capabilities: What the model's engine can do.
    """
    if config.pipeline_type != "AUTO" or choice.pipeline in (PAGED, OMNI):
        return []
    return [name for name, need in CAPABILITIES.items() if need not in capabilities and need != SPEECH]


def only_genai(config: EngineConfig) -> str:
    """Returns what the options and the model need that only openvino_genai's pipeline has; "" if nothing."""
    drafts, source = drafts_of(config), grammar_source(config)
    lacking = "" if source is None else source.missing
    needs = {
        "a DFlash draft model": drafts.model and model_config.is_head(drafts.model, "dflash"),
        f"--draft_device {drafts.device}": drafts.model and drafts.device not in ("", "CPU"),
        **{f"--{name}": config.value(name) for row in config.composition.backends for name in row.options},
        "a LoRA adapter for all requests": config.wants(GENAI_ADAPTERS),
        lacking: lacking,
        f"--target_device {config.target_device}": config.target_device != "CPU",
    }
    return next((what for what, needed in needs.items() if needed), "")


def grammar_source(config: EngineConfig) -> Any:
    """Returns the engine.paged.parts.GrammarSource of these options; None: the server has no grammars."""
    make = config.part(GRAMMARS)
    return None if make is None else make(config)


def has_vision(model_dir: Path) -> bool:
    """Returns whether the model has the networks that turn text and images into embeddings."""
    return all((model_dir / name).is_file() for name in VISION_FILES)


def _by_genai(config: EngineConfig, reason: str) -> Choice:
    """Returns continuous batching, unless its tokens are wrong."""
    wrong = _miscomputed(config)
    return Choice(STATEFUL, f"{reason}, and {wrong}") if wrong else Choice(CONTINUOUS, reason)


def _miscomputed(config: EngineConfig) -> str:
    """Returns what is wrong with continuous batching for this model; "" if nothing is known."""
    if model_file.is_one(config.model_dir):
        return ""
    kind = model_config.read(config.model_dir).get("model_type")
    return f"LM_CB generates wrong tokens with models of the type {kind}" if kind in MISCOMPUTED else ""


def _obstacle(config: EngineConfig, vision: bool) -> str:
    """Returns why AUTO cannot take the paged engine; "" if it can.

    Args:
        config: The options of the engine.
        vision: Whether the model reads images.
    """
    need = only_genai(config)
    if need:
        return f"the paged engine does not support {need}"
    draft = drafts_of(config).model
    for path in (config.model_dir, *([draft] if draft else ())):
        proven, what = PROVEN, "models"
        if vision and path == config.model_dir:
            proven, what = PROVEN_VISION, "models with vision"
        kind = model_config.model_type(path)  # of a file that cannot be served it raises the reason
        if kind not in proven and not model_file.is_one(path):
            return f"the paged engine is not tested with {what} of the type {kind}"
    return ""

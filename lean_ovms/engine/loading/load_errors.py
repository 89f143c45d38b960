"""Turns a failure to load a pipeline into one line that names the option at fault. Independent of openvino.

GenAI's message for a missing file is unclear; it loads a model without a tokenizer, and fails with the first text; and
it reports a wrong plugin property only by the property's name.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...config import EngineConfig
from ...config.options import PROPERTIES
from ...errors import StartError, last_line
from ...repository import model_file, weights
from ...repository.weights import TOKENIZERS
from ...util.resources import free_memory_bytes, lacks_thread, with_memory_limit, with_thread_limits
from .pipeline_choice import drafts_of

log = logging.getLogger(__name__)

TEXT_MODEL = "openvino_model.xml"
CACHE_OPTIONS = ("kv_cache_precision", "key_cache_precision", "value_cache_precision")
_MEMORY = (
    *("bad_alloc", "out of memory", "cannot allocate", "can't allocate", "not enough memory"),
    "failed to map segment",  # of a library
)
_NO_DEVICE = re.compile(r"Device with .* name is not registered|Cannot load library")


def check_files(config: EngineConfig, model: str = TEXT_MODEL) -> None:
    """Raises StartError if the model lacks its network, of this file name, or another file."""
    required: list[tuple[Path, str]] = []
    if not model_file.is_one(config.model_dir):
        required += [(config.model_dir, name) for name in (model, *TOKENIZERS)]
    if (draft := drafts_of(config).model) and not model_file.is_one(draft):
        required.append((draft, TEXT_MODEL))
    for folder, name in required:
        if not (folder / name).is_file():
            raise StartError(f"{folder} has no {name}")
    if config.target_device == "CPU" and weights.too_large(config.model_dir, free := free_memory_bytes()):
        log.warning("the model may not fit into memory: %s", weights.memory(config.model_dir, free))


def network(model_dir: Path) -> Path:
    return model_dir if model_file.is_one(model_dir) else model_dir / TEXT_MODEL


@contextmanager
def as_start_error(config: EngineConfig) -> Iterator[None]:
    """Turns exceptions of openvino_genai inside the `with` block, which builds a pipeline, into a StartError."""
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
    if short := weights.short_file(config.model_dir):
        return short
    if lacks_thread(whole):
        return f"the model does not load: {with_thread_limits(text)}"
    if scarce:
        text = f"{text}; {weights.memory(config.model_dir, free_memory_bytes())}"
        if config.cache_size:
            text = f"{text}, and --cache_size asks for another {config.cache_size} GB"
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

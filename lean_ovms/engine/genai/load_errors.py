"""From the options to a pipeline that loads, or to one line that says which option keeps it from loading.

GenAI explains a missing file badly, loads a model without a tokenizer and fails with the first text, and tells a wrong
plugin property by the property's name alone. Knows no openvino.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...config import Config
from ...errors import StartError
from ..errors import last_line

TOKENIZER_FILES = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
TEXT_MODEL = "openvino_model.xml"
_EVICTION = ("cacheevictionconfig", "cache_eviction", "rotation")
_NO_DEVICE = re.compile(r"Device with .* name is not registered|Cannot load library")


def look_for_files(config: Config, model: str = TEXT_MODEL) -> None:
    """Raises StartError for a file that is not there. model: the network's name."""
    wanted: list[tuple[Path, str]] = []
    if not is_gguf(config.model_dir):
        wanted += [(config.model_dir, name) for name in (model, *TOKENIZER_FILES)]
    if config.draft_model_path and not is_gguf(Path(config.draft_model_path)):
        wanted.append((Path(config.draft_model_path), TEXT_MODEL))
    for folder, name in wanted:
        if not (folder / name).is_file():
            raise StartError(f"{folder} has no {name}")


def is_gguf(path: Path) -> bool:
    """The model is one GGUF file."""
    return path.suffix == ".gguf"


@contextmanager
def explained(config: Config) -> Iterator[None]:
    """What the binding throws while it builds a pipeline becomes a StartError."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        raise StartError(_explain(config, last_line(error), str(error).lower())) from error


def _explain(config: Config, text: str, whole: str) -> str:
    if _NO_DEVICE.search(text):
        device = config.draft_device if config.draft_device not in ("", config.target_device) else config.target_device
        return f"--target_device {device}: there is no such device here"
    for option, names in _properties_of(config).items():
        if any(re.search(rf"\b{re.escape(name)}\b", text) for name in names):
            return f"--{option}: {text.removeprefix('NotFound: ')}"
    if config.draft_eagle3_mode and "eagle3" in whole:
        return f"--draft_eagle3_mode: {text}"
    if config.cache_eviction_config and any(word in whole for word in _EVICTION):
        return f"--cache_eviction_config: {text}"
    return f"the model does not load: {text}"


def _properties_of(config: Config) -> dict[str, list[str]]:
    """The names of OpenVINO properties that each option sets."""
    asked = json.loads(config.plugin_config) if config.plugin_config else {}
    given = {"plugin_config": list(asked)}
    if config.kv_cache_precision:
        given["kv_cache_precision"] = ["KV_CACHE_PRECISION"]
    if config.model_distribution_policy:
        given["model_distribution_policy"] = ["MODEL_DISTRIBUTION_POLICY"]
    if config.cache_dir:
        given["cache_dir"] = ["CACHE_DIR"]
    return given

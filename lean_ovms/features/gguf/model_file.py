"""A GGUF file as a model file: the answers of its metadata about task, defaults and pooling."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any

from ...config import Config
from ...errors import StartError
from ...repository import model_file
from ...repository.model_file import FileDefaults, FilePooling, FileWeights
from ...types import Json
from . import header
from .architectures import ARCHITECTURES, ENCODERS
from .cursor import Malformed
from .feature import GgufOptions
from .header import Header
from .overrides import NO_OVERRIDES

TEXT, EMBEDDINGS, RERANK, CLASSIFY = "text_generation", "embeddings", "rerank", "classify"
MEAN, RERANKS = 1, 4
"""Types of pooling: of embedding models, and of rerankers."""
INT32_MAX = (1 << 31) - 1
POOLING_MODES = {1: "MEAN", 2: "CLS", 3: "LAST"}
"""The pooling of an embedding model by its number."""
SAMPLING = {
    "temp": ("temperature", 0.0, 2.0),
    "top_k": ("top_k", -1, INT32_MAX),
    "top_p": ("top_p", 1e-6, 1.0),
    "min_p": ("min_p", 0.0, 1 - 1e-6),
    "penalty_repeat": ("repetition_penalty", 0.01, 100.0),
    "penalty_last_n": ("repeat_last_n", -1, INT32_MAX),
    "xtc_probability": ("xtc_probability", 0.0, 1.0),
    "xtc_threshold": ("xtc_threshold", 0.0, 1.0),
    "mirostat": ("mirostat", 0, 2),
    "mirostat_tau": ("mirostat_tau", 0.0, 1000.0),
    "mirostat_eta": ("mirostat_eta", 0.0, 100.0),
}
"""The ends of keys after "general.sampling.", each with the request field for which it is the default, and the least
and the largest number of that field. llama.cpp takes others, too: a negative temperature, for example, is 0."""
LLAMA_CPP_DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""llama.cpp's sampling parameters if neither the file nor the request sets them."""


FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    21: "Q2_K_S",
    25: "IQ4_NL",
    30: "IQ4_XS",
    32: "BF16",
    38: "MXFP4_MOE",
}
"""The names of files by "general.file_type", from llama_ftype of llama.cpp's include/llama.h."""


class GgufFile:
    """A model in a GGUF file, or in a split file, which is named by its first part."""

    def __init__(self, path: Path, config: Config | None = None) -> None:
        """Keeps the path and the options of the model, which may replace values of the file's metadata."""
        self._path = path
        known = config is not None and config.given("override_kv") is not None  # not in a server without the feature
        self._overrides = config.of(GgufOptions).read_overrides() if config is not None and known else NO_OVERRIDES

    @cached_property
    def header(self) -> Header:
        """The header of the file. Raises StartError if the file cannot be served."""
        return header.read(self._path, self._overrides)

    def config(self) -> Json:
        return self.header.config()

    def task(self) -> str:
        """Returns the task of the model, or "" if the file cannot be read.

        The pooling type in the metadata decides, as embedding models share architectures with models that generate
        text.
        """
        try:
            known = header.beginning(self._path)
        except (OSError, ValueError, Malformed, header.Unsupported):
            return ""  # the error is reported when the model is loaded
        known |= self._overrides.values
        architecture = str(known.get("general.architecture"))
        if architecture in ENCODERS and (classes := self._classes()):
            return RERANK if classes == 1 else CLASSIFY
        row = ARCHITECTURES.get(architecture)
        usual = MEAN if architecture in ENCODERS or (row is not None and not row.causal) else 0
        stated = known.get(f"{architecture}.pooling_type")
        pooling = stated if stated in (*POOLING_MODES, RERANKS) else usual  # llama.cpp also writes -1 for none
        return EMBEDDINGS if pooling in POOLING_MODES else RERANK if pooling else TEXT

    def _classes(self) -> int:
        """Returns the number of a classifier's classes, or 0 if it is no classifier or the file cannot be read."""
        try:
            return self.header.classes
        except StartError:
            return 0

    def defaults(self) -> FileDefaults:
        metadata = self.header.metadata
        default, tools = (metadata.get(key) for key in (header.TEMPLATE, f"{header.TEMPLATE}.tool_use"))
        return FileDefaults(
            sampling=_sampling(metadata),
            chat_template=default if isinstance(default, str) else "",
            tool_template=tools if isinstance(tools, str) else "",
        )

    def pooling(self) -> FilePooling:
        found = self.header
        tokens = {f"{name}_token": found.token(name) for name in ("bos", "eos")}
        return FilePooling(mode=POOLING_MODES.get(found.number("pooling_type"), ""), tokens=tokens)

    def weights(self) -> FileWeights:
        found = self.header
        kind = found.metadata.get("general.file_type")
        return FileWeights(
            parameters=sum(map(math.prod, found.tensors.values())),
            precision=FILE_TYPES.get(kind, "") if type(kind) is int else "",
        )

    def only_paged(self) -> str:
        if self._overrides:
            return "openvino-genai reads the metadata of GGUF files without --override_kv and --rope_parameters"
        return header.only_paged(self.header)

    def logits_width(self) -> int:
        return self.header.logits_width

    def user_defined(self) -> frozenset[int]:
        return self.header.user_defined


def header_of(path: Path) -> Header:
    """Returns the header of a file, which is cached while a model is loaded. Raises StartError."""
    found = model_file.of(path)
    assert isinstance(found, GgufFile)
    return found.header


def _sampling(metadata: dict[str, Any]) -> dict[str, Any]:
    """Returns the default sampling parameters of requests: those of the file, completed by llama.cpp's."""
    found: dict[str, Any] = {**LLAMA_CPP_DEFAULTS}
    for key, (field, least, most) in SAMPLING.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
            found[field] = min(max(value, least), most)
    if isinstance(order := metadata.get("general.sampling.sequence"), str):
        found["samplers"] = order.split(";")
    return found

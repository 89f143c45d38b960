"""A model's tokenizer, with the texts of its tokens."""

from __future__ import annotations

from ..loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import openvino_genai as genai

from ...types.engine import Vocabulary
from ..loading import json_tokenizer, model_info, vocabulary
from ..loading.devices import TOKENIZER_PROPERTIES
from ..loading.text_encoder import TextEncoder
from .network import EngineFile, file_of


class ModelTokenizer:
    """A tokenizer of openvino_genai's interface, loaded, and what was made of it."""

    def __init__(self, native: Any, vocabulary: Vocabulary, encode: TextEncoder, ends: frozenset[int]) -> None:
        """Keeps the parts.

        Args:
            native: The tokenizer, of openvino_genai or with its methods.
            vocabulary: The texts of its tokens.
            encode: Encodes texts.
            ends: Tokens that end a text, by the tokenizer's file.
        """
        self.native = native
        self.vocabulary = vocabulary
        self.encode = encode
        self.ends = ends

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of ids."""
        return model_info.decode(self.native, tokens, skip_special_tokens)


def new_loader(model_dir: Path, file: Path) -> Callable[[], ModelTokenizer]:
    """Returns what loads the tokenizer of a model.

    Args:
        model_dir: The directory of the model, or its file.
        file: The file of its network.
    """
    if (single := file_of(file)) is not None:
        return partial(_of_file, file, single)
    return partial(_of_directory, model_dir)


def _of_file(file: Path, single: EngineFile) -> ModelTokenizer:
    native = single.tokenizer()
    encode = TextEncoder(file, native.encode, native.vocabulary.pieces, native.library)
    return ModelTokenizer(native, native.vocabulary, encode, frozenset(native.ends))


def _of_directory(model_dir: Path) -> ModelTokenizer:
    native = genai.Tokenizer(str(model_dir), **TOKENIZER_PROPERTIES)
    library = json_tokenizer.read(model_dir)
    known = vocabulary.build(model_dir, native, library)
    encode = TextEncoder(model_dir, partial(model_info.encode, native), known.pieces, library)
    return ModelTokenizer(native, known, encode, frozenset())

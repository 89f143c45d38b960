"""Checks that the exported tokenizer has the ids and texts of tokenizer.json, with which the model was trained."""

from __future__ import annotations

import json
from pathlib import Path

import openvino as ov
import openvino_tokenizers
from tokenizers import Tokenizer

from .speech import WORDS

OTHER = ("", " ", "Three", " three, ONE!", " fünf  zwölf\n", "日本語 🙂", " <|endoftext|> <|0.00|>")
"""Texts besides the words that the model was trained with, because prompts of clients may contain anything."""


def check(model: Path) -> int:
    """Compares texts and times, and returns how many. Raises ValueError at the first difference."""
    words = [word for names in WORDS.values() for word in names]
    texts = [*(f" {word}" for word in words), *OTHER, "".join(f" {word}" for word in words)]
    core = ov.Core()
    core.add_extension(str(openvino_tokenizers._ext_path))
    encode = core.compile_model(model / "openvino_tokenizer.xml", "CPU")
    decode = core.compile_model(model / "openvino_detokenizer.xml", "CPU")
    reference = Tokenizer.from_file(str(model / "tokenizer.json"))
    for text in texts:
        expected = reference.encode(text).ids
        found = encode([text])["input_ids"][0].tolist()
        if found != expected:
            raise ValueError(f"{text!r}: {found}, and tokenizer.json has {expected}")
        bare = reference.encode(text, add_special_tokens=False).ids
        _compare(decode, reference, [bare] if bare else [])
    special = json.loads((model / "generation_config.json").read_text())["no_timestamps_token_id"]
    times = range(special + 1, reference.get_vocab_size())
    _compare(decode, reference, [[one] for one in times])
    return len(texts) + len(times)


def _compare(decode: ov.CompiledModel, reference: Tokenizer, rows: list[list[int]]) -> None:
    for tokens, found in zip(rows, decode([rows])[0].tolist() if rows else [], strict=True):
        expected = reference.decode(tokens)
        if found != expected:
            raise ValueError(f"{tokens}: {found!r}, and tokenizer.json has {expected!r}")

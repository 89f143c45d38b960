"""Structural tags for SentencePiece models within openvino-genai, in the text that their tokens have there.

GenAI matches a grammar against a vocabulary in which a space is still "▁" and a byte token is the text "<0x0A>"
(measured on 2026.4.1; other tokenizers have the real bytes there). So a space in a grammar would forbid every token of
the model that has one. Literals, patterns, and the names and listed values of schemas are rewritten; what a schema
leaves open is not, so a string may come with a byte token for a line end.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .....types import Json
from .....util.files import read_text

SPACE = "\u2581"
_WRITTEN = {ord(" "): SPACE, ord("\n"): "<0x0A>", ord("\r"): "<0x0D>", ord("\t"): "<0x09>"}
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]', re.DOTALL)
_TEXTS = frozenset(("value", "begin", "end", "separator", "triggers", "excludes"))
_NAMES = frozenset(("required", "enum", "const"))


def has_byte_fallback(model_dir: Path) -> bool:
    """Returns whether the detokenizer turns "<0x0A>" into bytes, as SentencePiece's do: the vocabulary has them as
    text.
    """
    try:
        return "ByteFallback" in read_text(model_dir / "openvino_detokenizer.xml")
    except (OSError, UnicodeDecodeError):
        return False


def rewritten(form: Any, key: str = "") -> Any:
    """Returns a format in the characters of a SentencePiece vocabulary, which writes a space as ▁.

    Args:
        form: The format, or a part of it.
        key: The member of the format that the part is.
    """
    if isinstance(form, list):
        return [rewritten(part, key) for part in form]
    if isinstance(form, str):
        return _text(form, key)
    if isinstance(form, dict):
        return {name: _schema(part) if name == "json_schema" else rewritten(part, name) for name, part in form.items()}
    return form


def _text(text: str, key: str) -> str:
    if key in _TEXTS:
        return text.translate(_WRITTEN)
    if key == "pattern":
        return text.replace(" ", SPACE)
    return _LITERAL.sub(lambda found: found[0].replace(" ", SPACE), text) if key == "grammar" else text


def _schema(schema: Any, key: str = "") -> Any:
    if isinstance(schema, list):
        return [_schema(part, key) for part in schema]
    if isinstance(schema, str):
        return schema.replace(" ", SPACE) if key in _NAMES else schema
    if not isinstance(schema, dict):
        return schema
    if key in ("properties", *_NAMES):
        return {name.replace(" ", SPACE): _schema(part) for name, part in schema.items()}
    done: Json = {name: _schema(part, name) for name, part in schema.items()}
    return done

"""Rewrites structural tags for SentencePiece models in openvino-genai, in which tokens have another text.

GenAI matches a grammar against a vocabulary in which a space is still "▁" and a byte token is the text "<0x0A>"
(measured with 2026.4.1; with other tokenizers the vocabulary has the real bytes). So a space in a grammar would forbid
every token that contains one. Literals, patterns, and the names and listed values of schemas are rewritten. The free
parts of a schema are not, so a string may contain a byte token for a line end.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .....repository.model_config import TOKENIZERS
from .....types import Json
from .....util.files import read_text

SPACE = "\u2581"
_WRITTEN = {ord(" "): SPACE, ord("\n"): "<0x0A>", ord("\r"): "<0x0D>", ord("\t"): "<0x09>"}
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]', re.DOTALL)
_TEXTS = frozenset(("value", "begin", "end", "separator", "triggers", "excludes"))
_NAMES = frozenset(("required", "enum", "const"))


def has_byte_fallback(model_dir: Path) -> bool:
    """Returns whether the detokenizer converts texts such as "<0x0A>" to bytes, as SentencePiece's do."""
    try:
        return "ByteFallback" in read_text(model_dir / TOKENIZERS[1])
    except (OSError, UnicodeDecodeError):
        return False


def rewritten(form: Any, key: str = "") -> Any:
    """Rewrites a format in the characters of a SentencePiece vocabulary, in which a space is "▁".

    Args:
        form: The format, or a part of it.
        key: The name of the member that has the part.
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

"""How a model's own tokenizer puts special tokens around a text and a pair, as a pooler.Template.

Read from the post_processor of tokenizer.json: TemplateProcessing, BertProcessing, RobertaProcessing, or a Sequence of
them, of which the last counts. Joining ids by it equals the tokenizer's own encoding of pairs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...types import Json
from .pooler import Template

Ids = tuple[int, ...]


def template(processor: Json, single: tuple[Ids, Ids]) -> Template:
    """Returns the template of a tokenizer. single: what its IR puts around a text, whatever the file says.

    Without a file a pair gets the ending of a text between its halves, as BERT's does.
    """
    found = _of(processor)
    if found is not None and found.pair is not None:
        return replace(found, single=single)
    before, after = single
    return Template(single=single, pair=(before, after, after), types=(0, 0, 0, 1, 1))


def _of(processor: Json) -> Template | None:
    match processor.get("type"):
        case "Sequence":
            inner = processor.get("processors")
            found = [_of(one) for one in inner if isinstance(one, dict)] if isinstance(inner, list) else []
            return next((one for one in reversed(found) if one is not None), None)
        case "BertProcessing":
            cls, sep = _id(processor.get("cls")), _id(processor.get("sep"))
            return Template(pair=(cls, sep, sep), types=(0, 0, 0, 1, 1))
        case "RobertaProcessing":
            cls, sep = _id(processor.get("cls")), _id(processor.get("sep"))
            return Template(pair=(cls, sep + sep, sep))
        case "TemplateProcessing":
            return _of_template(processor)
    return None


def _id(entry: Any) -> Ids:
    """Returns the id of a [text, id] pair."""
    return (entry[1],) if isinstance(entry, list) and len(entry) == 2 and type(entry[1]) is int else ()


def _of_template(processor: Json) -> Template | None:
    """Reads [{"SpecialToken": {"id", "type_id"}} | {"Sequence": {"id": "A" | "B", "type_id"}}, ...]."""
    specials, pieces = processor.get("special_tokens"), processor.get("pair")
    if not isinstance(specials, dict) or not isinstance(pieces, list):
        return None
    parts: list[list[int]] = [[], [], []]
    types = [0, 0, 0, 0, 0]
    place = 0  # 0 before A, 1 between, 2 after B
    for piece in pieces:
        if "Sequence" in piece:
            if piece["Sequence"].get("id") != "AB"[place]:
                return None
            types[1 + 2 * place] = int(piece["Sequence"].get("type_id", 0))
            place += 1
        else:
            entry = piece.get("SpecialToken", {})
            parts[place] += specials.get(entry.get("id"), {}).get("ids", [])
            types[2 * place] = int(entry.get("type_id", 0))
        if place > 2:
            return None
    before, between, after = map(tuple, parts)
    a, b, c, d, e = types
    return Template(pair=(before, between, after), types=(a, b, c, d, e)) if place == 2 else None

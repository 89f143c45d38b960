"""Grammars for SentencePiece models, in the text that their tokens have in the engine.

GenAI matches a grammar against a vocabulary in which a space is still "▁" and a byte token is the text "<0x0A>"
(measured on 2026.4.1; other tokenizers have the real bytes there). So a space in a grammar would forbid every token of
the model that has one, and a byte token would pass as six harmless characters. Here a grammar is rewritten: spaces
become "▁", line ends of the layout are removed, "<0" is excluded where any text may stand, and letters may be spelled
in bytes.
"""

from __future__ import annotations

SPACE = "\u2581"
_DISPATCH = ("TagDispatch((", "stop_str=(")
"""Text before a literal that must stay one literal."""
_BYTES = {"\\n": "<0x0A>", "\\r": "<0x0D>", "\\t": "<0x09>"}


def rewrite_grammar(grammar: str, *, ours: bool) -> str:
    """An EBNF grammar for such a model. ours: its line ends are layout; else they are required, as byte tokens."""
    try:
        return _rewrite(grammar, ours)
    except IndexError:
        return grammar  # a bracket or a quote without its end: the compiler reports it


def to_token_text(text: str) -> str:
    """A text as it is in the tokens of such a model."""
    return text.replace(" ", SPACE).replace("\n", "<0x0A>").replace("\r", "<0x0D>").replace("\t", "<0x09>")


def _rewrite(grammar: str, ours: bool) -> str:
    out: list[str] = []
    position = 0
    while position < len(grammar):
        char = grammar[position]
        if char not in '"[':
            out.append(char)
            position += 1
            continue
        end = _end(grammar, position)
        inside = _units(grammar[position + 1 : end - 1])
        if char == "[":
            out.append(_class(inside))
        elif grammar.endswith(_DISPATCH, 0, position):
            out.append(_literal(inside, ours))
        else:
            out.append(_spelled(inside, ours))
        position = end
    return "".join(out)


def _end(grammar: str, position: int) -> int:
    """The position after the literal or class that begins at position."""
    close = '"' if grammar[position] == '"' else "]"
    position += 1
    while grammar[position] != close:
        position += 2 if grammar[position] == "\\" else 1
    return position + 1


def _units(inside: str) -> list[str]:
    """Characters, an escape as one of them."""
    units, position = [], 0
    while position < len(inside):
        size = 2 if inside[position] == "\\" else 1
        units.append(inside[position : position + size])
        position += size
    return units


def _spelled(units: list[str], ours: bool) -> str:
    """A literal whose non-ASCII characters may also come as byte tokens, as a model writes those that it lacks."""
    parts: list[str] = []
    plain: list[str] = []
    for unit in units:
        if unit.isascii():
            plain.append(unit)
            continue
        parts.append(_literal(plain, ours))
        plain = []
        parts.append(f'("{unit}" | "{_bytes(unit)}")')
    return " ".join(part for part in (*parts, _literal(plain, ours)) if part != '""') or '""'


def _bytes(text: str) -> str:
    return "".join(f"<0x{byte:02X}>" for byte in text.encode("utf-8", "replace"))


def _literal(units: list[str], ours: bool) -> str:
    written = {" ": SPACE, **(dict.fromkeys(_BYTES, "") if ours else _BYTES)}
    return '"' + "".join(written.get(unit, unit) for unit in units) + '"'


def _class(units: list[str]) -> str:
    if units[:1] != ["^"]:
        kept = [unit for i, unit in enumerate(units) if unit != " " or _in_range(units, i)]
        return "[" + "".join(kept) + (SPACE if " " in units else "") + "]"
    if "<" in units:
        return "[" + "".join(units) + "]"
    body = "".join(units[1:])  # not before a "0": XGrammar takes all hex digits after \\x for one code
    return f'([^<{body}] | "<" [^<0{body}])'


def _in_range(units: list[str], position: int) -> bool:
    """Whether a unit is an end of a range a-b."""
    return "-" in (units[position - 1 : position] + units[position + 1 : position + 2])

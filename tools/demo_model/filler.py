"""Long texts in front of a question, as agents send them: instructions, source code, schemas and logs.

Part of it is real text, from Python's documentation and the sources of its library; the rest is made up. The model
need not understand it: it has to answer the question that follows, and to end.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from tools.demo_model.dialog import ask_to
from tools.demo_model.tool_requests import ask_tool
from tools.demo_model.words import VERBS, Rng, code, each, invented, phrase, value, word

SOURCES = each(
    "argparse ast asyncio/base_events calendar configparser csv datetime difflib email/message functools http/client "
    "inspect json/decoder logging/__init__ mailbox optparse pathlib pickle shutil socket statistics subprocess tarfile "
    "textwrap threading typing unittest/mock urllib/request uuid zipfile"
)
LEVELS = ("INFO", "DEBUG", "ERROR")


@functools.cache
def library() -> tuple[str, ...]:
    """Returns Python's documentation and sources of its library, as far as this interpreter has them."""
    root = Path(functools.__file__).parent
    paths = [root / "pydoc_data" / "topics.py", *(root / f"{name}.py" for name in SOURCES)]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths if path.exists()]
    texts[0] = texts[0].replace("\\n", "\n").replace("'\n", "\n").replace(" '", " ")
    return tuple(texts)


def real(r: Rng) -> str:
    texts = library()
    text = texts[0] if r.random() < 0.6 else r.choice(texts)
    at = r.randrange(max(1, len(text) - 500))
    return text[at : at + 500]


def made_up(r: Rng) -> str:
    kind = r.randrange(6)
    if kind == 0:
        return "\n".join(f"- {ask_to(r, f'{r.choice(VERBS)} the {phrase(r, 1, 6)}')}" for _ in range(6))
    if kind == 1:
        return "\n".join(json.dumps(ask_tool(r).tool) for _ in range(2))
    if kind == 2:
        return "\n".join(
            f"{r.choice(('#', '##', '###'))} {phrase(r, 1, 4).title()}\n\n{phrase(r, 8, 20)}." for _ in range(3)
        )
    if kind == 3:
        return "\n".join(f"    {word(r)}_{word(r)} = {invented(r)}({value(r)!r}, {r.randint(0, 99)})" for _ in range(8))
    if kind == 4:
        return "\n".join(
            f"2025-0{r.randint(1, 9)}-1{r.randint(0, 9)} {r.choice(LEVELS)} {phrase(r, 2, 8)} {code(r)}"
            for _ in range(6)
        )
    return " ".join(value(r) for _ in range(60))


def passages(r: Rng, characters: int) -> str:
    """Returns text of all kinds with this many characters, without markers of the chat template."""
    text = ""
    while len(text) < characters:
        text += (real if r.random() < 0.65 else made_up)(r)[: r.randint(60, 400)]
    return text[-characters:].replace("<|", "<").strip()

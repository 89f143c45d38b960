"""Builds the evaluation: one case per held-out prompt, each with its topic and its check."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.demo_model import checks, heldout, heldout_fresh
from tools.demo_model.checks import Check
from tools.demo_model.drills import HELD_OUT_COUNTS, HELD_OUT_SUMS
from tools.demo_model.facts import CAPITALS, COLOUR_OF
from tools.demo_model.heldout_tools import PARALLEL, RESULTS, SINGLE, UNNEEDED, Row

# group -> share of right answers that the model is meant to reach
TARGETS: dict[str, float | None] = {
    "chat": 0.90,
    "tools": 0.90,
    "parallel": 0.70,
    "thinking": 0.95,
    "json": 0.80,
    "fresh": None,  # the same topics in wordings that nobody had seen while the generator was written
    "ends": 0.98,
    "forms": 0.90,  # a schema that only the engine knows
    "long": 0.95,
}


@dataclass(slots=True)
class Case:
    """The user's turns are answered one after the other by the model itself; the check sees the last answer."""

    group: str
    topic: str
    turns: list[str]
    check: Check
    system: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    past: tuple[dict[str, Any], ...] = ()  # messages after the only user turn: a call and its result
    thinking: bool = False


def declared(row: Row) -> dict[str, Any]:
    name, description, parameters, _, _ = row
    properties = {
        key: {"type": "string", "enum": kind} if isinstance(kind, list) else {"type": kind}
        for key, kind in parameters.items()
    }
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def chat_cases(r: random.Random) -> Iterator[Case]:
    for text in heldout.GREETINGS:
        yield Case("chat", "greeting", [text], checks.says("hello"))
    for text in heldout.ABOUT:
        yield Case("chat", "what it is", [text], checks.says("demo model", "lean_ovms"))
    for text in heldout.RUNTIME:
        yield Case("chat", "what it is", [text], checks.says("openvino genai"))
    for text, needed in heldout.SERVER:
        yield Case("chat", "the server", [text], checks.says(needed))
    for i in range(30):
        name, system = heldout.NAMES[i % len(heldout.NAMES)], heldout.PERSONAS[i % len(heldout.PERSONAS)]
        yield Case(
            "chat",
            "named by the system",
            [r.choice(heldout.PERSONA_QUESTIONS)],
            checks.says(name),
            system=system.format(n=name),
        )
    for i in range(30):
        tell, between, ask = heldout.MEMORIES[i % len(heldout.MEMORIES)]
        name = heldout.NAMES[(i * 7) % len(heldout.NAMES)]
        yield Case("chat", "memory, 2-3 turns", [tell.format(v=name), *between, ask], checks.says(name))
    for i in range(12):
        tell, between, ask = heldout.CITY_MEMORIES[i % len(heldout.CITY_MEMORIES)]
        city = heldout.CITIES[(i * 3) % len(heldout.CITIES)]
        yield Case("chat", "memory, 2-3 turns", [tell.format(v=city), *between, ask], checks.says(city))
    for i, text in enumerate((*heldout.SENTENCES, *heldout.WORDS, *heldout.CITIES)):
        yield Case("chat", "repeat", [heldout.REPEATS[i % len(heldout.REPEATS)].format(text)], checks.exactly(text))
    for i, word in enumerate((*heldout.WORDS, *(name.lower() for name in heldout.NAMES))):
        yield Case("chat", "spell", [heldout.SPELLS[i % len(heldout.SPELLS)].format(word)], checks.spells(word))
    for i, (a, b) in enumerate(sorted(HELD_OUT_COUNTS) * 2):
        yield Case("chat", "count", [heldout.COUNTS[i % len(heldout.COUNTS)].format(a=a, b=b)], checks.counts(a, b))
    for i, (a, b) in enumerate(sorted(HELD_OUT_SUMS) * 2):
        yield Case(
            "chat", "add, unseen pairs", [heldout.SUMS[i % len(heldout.SUMS)].format(a=a, b=b)], checks.sums_to(a + b)
        )
    for i, (land, city) in enumerate(sorted(CAPITALS.items())):
        yield Case(
            "chat",
            "facts, unseen wording",
            [heldout.CAPITAL_WAYS[i % len(heldout.CAPITAL_WAYS)].format(land)],
            checks.says(city),
        )
    for i, (thing, colour) in enumerate(sorted(COLOUR_OF.items())):
        yield Case(
            "chat",
            "facts, unseen wording",
            [heldout.COLOUR_WAYS[i % len(heldout.COLOUR_WAYS)].format(thing)],
            checks.says(colour),
        )
    for text in heldout.UNKNOWN:
        yield Case("chat", "not known", [text], checks.says("sorry"))
    for language, text, needed in heldout.FOREIGN:
        yield Case("chat", "German, Spanish", [text], checks.speaks(language, needed))
    for i in range(18):
        language, tell, ask = heldout.FOREIGN_MEMORIES[i % len(heldout.FOREIGN_MEMORIES)]
        name = heldout.NAMES[i]
        yield Case("chat", "German, Spanish", [tell.format(v=name), ask], checks.speaks(language, name))


def distractors(r: random.Random, taken: set[str], most: int = 2) -> list[dict[str, Any]]:
    words = [word for name in taken for word in name.lower().split("_") if len(word) > 3]
    rows = [row for row in SINGLE if row[0] not in taken and not any(word in row[0].lower() for word in words)]
    return [declared(row) for row in r.sample(rows, r.randint(0, most))]


def with_others(r: random.Random, rows: list[Row], most: int = 2) -> tuple[dict[str, Any], ...]:
    tools = list(
        {
            tool["function"]["name"]: tool
            for tool in [*map(declared, rows), *distractors(r, {row[0] for row in rows}, most)]
        }.values()
    )
    r.shuffle(tools)
    return tuple(tools)


def tool_cases(r: random.Random) -> Iterator[Case]:
    for row in SINGLE:
        yield Case("tools", "one call", [row[3]], checks.calls((row[0], row[4])), tools=(declared(row),))
    for row in SINGLE:
        yield Case(
            "tools", "one call, other tools too", [row[3]], checks.calls((row[0], row[4])), tools=with_others(r, [row])
        )
    for index, content, needed in RESULTS:
        row = SINGLE[index]
        call = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": row[0], "arguments": row[4]}}],
        }
        past = (call, {"role": "tool", "content": content})
        yield Case(
            "tools",
            "result in words",
            [row[3]],
            checks.plain(checks.says(*needed)),
            tools=with_others(r, [row]),
            past=past,
        )
    for text, needed in UNNEEDED:
        yield Case(
            "tools",
            "no tool fits",
            [text],
            checks.plain(checks.says(needed)),
            tools=with_others(r, [SINGLE[r.choice((0, 5, 13, 16, 20, 28, 32))]]),
        )
    for indexes, text, expected in PARALLEL:
        rows = [SINGLE[i] for i in indexes]
        yield Case(
            "parallel",
            "two calls",
            [text],
            checks.calls(*((SINGLE[i][0], arguments) for i, arguments in expected)),
            tools=with_others(r, rows, most=1),
        )


def thinking_cases(r: random.Random) -> Iterator[Case]:
    """The same kinds of prompts with enable_thinking: the block must be there and closed, and the answer right."""
    for i, (land, city) in enumerate(sorted(CAPITALS.items())[:12]):
        yield Case(
            "thinking",
            "think, then answer",
            [heldout.CAPITAL_WAYS[i % 4].format(land)],
            checks.thinks(checks.says(city)),
            thinking=True,
        )
    for i, text in enumerate(heldout.SENTENCES[:8]):
        yield Case(
            "thinking",
            "think, then answer",
            [heldout.REPEATS[i].format(text)],
            checks.thinks(checks.exactly(text)),
            thinking=True,
        )
    for text in heldout.GREETINGS[:6]:
        yield Case("thinking", "think, then answer", [text], checks.thinks(checks.says("hello")), thinking=True)
    for a, b in sorted(HELD_OUT_COUNTS)[:6]:
        yield Case(
            "thinking",
            "think, then answer",
            [f"Could you count from {a} to {b}?"],
            checks.thinks(checks.counts(a, b)),
            thinking=True,
        )
    for text, needed in heldout.SERVER[:40:5]:
        yield Case("thinking", "think, then answer", [text], checks.thinks(checks.says(needed)), thinking=True)
    for row in SINGLE[:48:3]:
        yield Case(
            "thinking",
            "think, then call",
            [row[3]],
            checks.thinks(checks.calls((row[0], row[4]))),
            tools=with_others(r, [row], most=1),
            thinking=True,
        )


def json_cases() -> Iterator[Case]:
    for text, expected in heldout.JSON_REQUESTS:
        yield Case("json", "valid JSON", [text], checks.is_json())
        if expected is not None:
            yield Case("chat", "JSON with the right content", [text], checks.is_json(expected))


def fresh_cases(r: random.Random) -> Iterator[Case]:
    for text, needed in heldout_fresh.QUESTIONS:
        yield Case("fresh", "chat", [text], checks.says(needed))
    for language, text, needed in heldout_fresh.FOREIGN:
        yield Case("fresh", "German, Spanish", [text], checks.speaks(language, needed))
    for system, ask, name in heldout_fresh.PERSONAS:
        yield Case("fresh", "named by the system", [ask], checks.says(name), system=system.format(n=name))
    for tell, ask, value in heldout_fresh.MEMORIES:
        yield Case("fresh", "memory, 2 turns", [tell.format(v=value), ask], checks.says(value))
    for row in heldout_fresh.TOOLS:
        for tools in ((declared(row),), with_others(r, [row])):
            yield Case("fresh", "one call", [row[3]], checks.calls((row[0], row[4])), tools=tools)
    for text in heldout_fresh.UNNEEDED:
        yield Case("fresh", "no tool fits", [text], checks.plain(checks.says("")), tools=with_others(r, [SINGLE[5]]))


def all_cases(seed: int = 5) -> list[Case]:
    r = random.Random(seed)
    return [*chat_cases(r), *tool_cases(r), *thinking_cases(r), *json_cases(), *fresh_cases(r)]

"""Builds the evaluation: one case per held-out prompt, each with its topic and its check."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tools.demo_model import checks, heldout
from tools.demo_model.checks import Check
from tools.demo_model.drills import HELD_OUT_COUNTS, HELD_OUT_SUMS
from tools.demo_model.facts import CAPITALS, COLOUR_OF
from tools.demo_model.heldout import PARALLEL, RESULTS, SINGLE, UNNEEDED, Row

# group -> share of right answers that the model must reach
TARGETS: dict[str, float | None] = {
    "chat": 0.90,
    "tools": 0.90,
    "parallel": 0.70,
    "thinking": 0.95,
    "json": 0.80,
    "fresh": None,  # the same topics in wordings that were written after the generator
    "ends": 0.98,
    "forms": 0.90,  # a schema that only the engine knows
    "long": 0.95,
}


@dataclass(slots=True)
class Case:
    """One conversation of the evaluation. The model answers all user turns, and the last answer is checked."""

    group: str
    topic: str
    turns: list[str]
    check: Check
    system: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    past: tuple[dict[str, Any], ...] = ()  # messages after the only user turn: a call and its result
    thinking: bool = False


def declared(name: str, description: str, parameters: dict[str, Any], *_: Any) -> dict[str, Any]:
    """Returns the declaration of a tool, given the first members of a Row."""
    properties = {
        key: {"type": "string", "enum": kind} if isinstance(kind, list) else {"type": kind}
        for key, kind in parameters.items()
    }
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


Asked = Iterable[tuple[str, Check]]


def asked(group: str, topic: str, rows: Asked, **more: Any) -> Iterator[Case]:
    """Yields a case for each question with its check."""
    for text, check in rows:
        yield Case(group, topic, [text], check, **more)


def worded(ways: Sequence[str], rows: Iterable[tuple[dict[str, Any] | str, Check]]) -> Asked:
    """Puts each value into a wording, taking the wordings in turn.

    Args:
        ways: The wordings, as format strings.
        rows: The values to insert, each with the check of the answer.
    """
    for i, (words, check) in enumerate(rows):
        way = ways[i % len(ways)]
        yield way.format(**words) if isinstance(words, dict) else way.format(words), check


def chat_cases(r: random.Random) -> Iterator[Case]:
    counts, sums = sorted(HELD_OUT_COUNTS) * 2, sorted(HELD_OUT_SUMS) * 2
    texts = (*heldout.SENTENCES, *heldout.WORDS, *heldout.CITIES)
    spelt = (*heldout.WORDS, *(name.lower() for name in heldout.NAMES))
    yield from asked("chat", "greeting", ((text, checks.says("hello")) for text in heldout.GREETINGS))
    yield from asked("chat", "what it is", ((text, checks.says("demo model", "lean_ovms")) for text in heldout.ABOUT))
    yield from asked("chat", "what it is", ((text, checks.says("openvino genai")) for text in heldout.RUNTIME))
    yield from asked("chat", "the server", ((text, checks.says(needed)) for text, needed in heldout.SERVER))
    for i in range(30):
        name, system = heldout.NAMES[i % len(heldout.NAMES)], heldout.PERSONAS[i % len(heldout.PERSONAS)]
        named = [(r.choice(heldout.PERSONA_QUESTIONS), checks.says(name))]
        yield from asked("chat", "named by the system", named, system=system.format(n=name))
    memories = [(heldout.MEMORIES, heldout.NAMES, i, 7) for i in range(30)]
    memories += [(heldout.CITY_MEMORIES, heldout.CITIES, i, 3) for i in range(12)]
    for rows, values, i, step in memories:
        tell, between, ask = rows[i % len(rows)]
        value = values[(i * step) % len(values)]
        yield Case("chat", "memory, 2-3 turns", [tell.format(v=value), *between, ask], checks.says(value))
    yield from asked("chat", "repeat", worded(heldout.REPEATS, ((text, checks.exactly(text)) for text in texts)))
    yield from asked("chat", "spell", worded(heldout.SPELLS, ((word, checks.spells(word)) for word in spelt)))
    counted = (({"a": a, "b": b}, checks.counts(a, b)) for a, b in counts)
    yield from asked("chat", "count", worded(heldout.COUNTS, counted))
    added = (({"a": a, "b": b}, checks.sums_to(a + b)) for a, b in sums)
    yield from asked("chat", "add, unseen pairs", worded(heldout.SUMS, added))
    for ways, facts in ((heldout.CAPITAL_WAYS, CAPITALS), (heldout.COLOUR_WAYS, COLOUR_OF)):
        known = ((thing, checks.says(fact)) for thing, fact in sorted(facts.items()))
        yield from asked("chat", "facts, unseen wording", worded(ways, known))
    yield from asked("chat", "not known", ((text, checks.says("sorry")) for text in heldout.UNKNOWN))
    foreign = ((text, checks.speaks(language, needed)) for language, text, needed in heldout.FOREIGN)
    yield from asked("chat", "German, Spanish", foreign)
    for i in range(18):
        language, tell, ask = heldout.FOREIGN_MEMORIES[i % len(heldout.FOREIGN_MEMORIES)]
        name = heldout.NAMES[i]
        yield Case("chat", "German, Spanish", [tell.format(v=name), ask], checks.speaks(language, name))


def distractors(r: random.Random, taken: set[str], most: int = 2) -> list[dict[str, Any]]:
    words = [word for name in taken for word in name.lower().split("_") if len(word) > 3]
    rows = [row for row in SINGLE if row[0] not in taken and not any(word in row[0].lower() for word in words)]
    return [declared(*row) for row in r.sample(rows, r.randint(0, most))]


def with_others(r: random.Random, rows: list[Row], most: int = 2) -> tuple[dict[str, Any], ...]:
    every = [*(declared(*row) for row in rows), *distractors(r, {row[0] for row in rows}, most)]
    tools = list({tool["function"]["name"]: tool for tool in every}.values())
    r.shuffle(tools)
    return tuple(tools)


def tool_cases(r: random.Random) -> Iterator[Case]:
    for row in SINGLE:
        yield Case("tools", "one call", [row[3]], called(row), tools=(declared(*row),))
    for row in SINGLE:
        yield Case("tools", "one call, other tools too", [row[3]], called(row), tools=with_others(r, [row]))
    for index, content, needed in RESULTS:
        row = SINGLE[index]
        made = [{"type": "function", "function": {"name": row[0], "arguments": row[4]}}]
        past = ({"role": "assistant", "content": "", "tool_calls": made}, {"role": "tool", "content": content})
        check, tools = checks.plain(checks.says(*needed)), with_others(r, [row])
        yield Case("tools", "result in words", [row[3]], check, tools=tools, past=past)
    for text, answer in UNNEEDED:
        tools = with_others(r, [SINGLE[r.choice((0, 5, 13, 16, 20, 28, 32))]])
        yield Case("tools", "no tool fits", [text], checks.plain(checks.says(answer)), tools=tools)
    for indexes, text, expected in PARALLEL:
        check = checks.calls(*((SINGLE[i][0], arguments) for i, arguments in expected))
        tools = with_others(r, [SINGLE[i] for i in indexes], most=1)
        yield Case("parallel", "two calls", [text], check, tools=tools)


def called(row: Row) -> Check:
    """Returns a check that accepts only the tool call of a row."""
    return checks.calls((row[0], row[4]))


def thinking_cases(r: random.Random) -> Iterator[Case]:
    """Yields prompts of the same kinds with enable_thinking. The block must be there and closed, and the answer
    right."""
    capitals = ((land, checks.says(city)) for land, city in sorted(CAPITALS.items())[:12])
    rows = [*worded(heldout.CAPITAL_WAYS[:4], capitals)]
    rows += worded(heldout.REPEATS, ((text, checks.exactly(text)) for text in heldout.SENTENCES[:8]))
    rows += ((text, checks.says("hello")) for text in heldout.GREETINGS[:6])
    rows += ((f"Could you count from {a} to {b}?", checks.counts(a, b)) for a, b in sorted(HELD_OUT_COUNTS)[:6])
    rows += ((text, checks.says(needed)) for text, needed in heldout.SERVER[:40:5])
    for text, check in rows:
        yield Case("thinking", "think, then answer", [text], checks.thinks(check), thinking=True)
    for row in SINGLE[:48:3]:
        tools = with_others(r, [row], most=1)
        yield Case("thinking", "think, then call", [row[3]], checks.thinks(called(row)), tools=tools, thinking=True)


def json_cases() -> Iterator[Case]:
    for text, expected in heldout.JSON_REQUESTS:
        yield Case("json", "valid JSON", [text], checks.is_json())
        if expected is not None:
            yield Case("chat", "JSON with the right content", [text], checks.is_json(expected))


def fresh_cases(r: random.Random) -> Iterator[Case]:
    yield from asked("fresh", "chat", ((text, checks.says(needed)) for text, needed in heldout.FRESH))
    foreign = ((text, checks.speaks(language, needed)) for language, text, needed in heldout.FRESH_FOREIGN)
    yield from asked("fresh", "German, Spanish", foreign)
    for system, ask, name in heldout.FRESH_PERSONAS:
        yield Case("fresh", "named by the system", [ask], checks.says(name), system=system.format(n=name))
    for tell, ask, value in heldout.FRESH_MEMORIES:
        yield Case("fresh", "memory, 2 turns", [tell.format(v=value), ask], checks.says(value))
    for row in heldout.FRESH_TOOLS:
        for tools in ((declared(*row),), with_others(r, [row])):
            yield Case("fresh", "one call", [row[3]], called(row), tools=tools)
    for text in heldout.FRESH_UNNEEDED:
        yield Case("fresh", "no tool fits", [text], checks.plain(checks.says("")), tools=with_others(r, [SINGLE[5]]))


def all_cases(seed: int = 5) -> list[Case]:
    r = random.Random(seed)
    return [*chat_cases(r), *tool_cases(r), *thinking_cases(r), *json_cases(), *fresh_cases(r)]

"""Properties of all parsers, whatever a model writes.

A family takes part if it has a ParserRow in a feature's manifest, and vectors in tests/vectors/<name>.json: {"tools":
[...], "cases": [{"name", "text", "content", "reasoning", "calls": [[name, arguments], ...], ...}]}. "arguments" is the
exact text (a string), or the object that the text must mean. "prompt_tail", "tools", "tool" and "reasoning_parser" of a
case override the default (both parts of the family). "ids" is how the ids of calls begin. "long" is a piece of the text
that the tests of cost repeat; one case of each family has it.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.features.model_families.registry import registry
from lean_ovms.models.generation import AnswerParser
from lean_ovms.types import Event, Reasoning, Text, ToolCallDelta, ToolCallStart
from tests.work import calls_of

VECTORS = Path(__file__).parents[2] / "vectors"
PARSERS = registry()
NAMES = sorted(PARSERS.rows)
ANY_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@dataclass
class CompletedChoice:
    """The result of all events of a generation."""

    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list, compare=False)

    def add(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Text):
                self.content += event.text
            elif isinstance(event, Reasoning):
                self.reasoning += event.text
            elif isinstance(event, ToolCallStart):
                assert event.index == len(self.calls)
                self.ids.append(event.id)
                self.calls.append([event.name, ""])
            elif isinstance(event, ToolCallDelta):
                assert event.index == len(self.calls) - 1
                self.calls[-1][1] += event.text


@dataclass
class Case:
    """One vector of one family."""

    family: str
    name: str
    text: str
    want: dict[str, Any]
    tools: list[dict[str, Any]]

    def parser(self) -> AnswerParser:
        tool = self.want.get("tool", self.family if self.family in PARSERS.tool_names else None)
        thinks = self.want.get("reasoning_parser", self.family if self.family in PARSERS.reasoning_names else None)
        return PARSERS.make(tool, thinks, tools=self.tools, prompt_tail=self.want.get("prompt_tail", ""))


@cache
def read_cases(family: str) -> list[Case]:
    data = json.loads((VECTORS / f"{family}.json").read_text())
    return [Case(family, c["name"], c["text"], c, c.get("tools", data.get("tools", ANY_TOOLS))) for c in data["cases"]]


CASES = [case for family in NAMES if (VECTORS / f"{family}.json").exists() for case in read_cases(family)]
each_long = pytest.mark.parametrize("case", [c for c in CASES if "long" in c.want], ids=lambda c: c.family)
each_family = pytest.mark.parametrize("family", NAMES)


def parse(parser: AnswerParser, chunks: list[str]) -> CompletedChoice:
    answer = CompletedChoice()
    said = [parser.feed(chunk) for chunk in chunks]
    said.append(parser.finish())
    for events in said:  # only now, because the parser must not change events that it has returned
        answer.add(events)
    return answer


def family_parser(family: str) -> AnswerParser:
    return Case(family, "", "", {}, ANY_TOOLS).parser()


@each_family
def test_recorded_answers_are_parsed_as_expected(family: str) -> None:
    assert any("long" in case.want for case in read_cases(family)), "every family has vectors"
    for case in read_cases(family):
        answer = parse(case.parser(), [case.text])
        assert answer.content == case.want.get("content", ""), case.name
        assert answer.reasoning == case.want.get("reasoning", ""), case.name
        wanted = case.want.get("calls", [])
        assert [name for name, _ in answer.calls] == [name for name, _ in wanted], case.name
        for (_, text), (_, arguments) in zip(answer.calls, wanted, strict=True):
            assert (text if isinstance(arguments, str) else json.loads(text)) == arguments, case.name
        for given, begin in zip(answer.ids, case.want.get("ids", ["call_"] * len(wanted)), strict=True):
            assert given.startswith(begin), case.name


@pytest.fixture(scope="module")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Returns whether --all-cuts was given, with which texts are cut at every position and all random texts are
    used."""
    return bool(request.config.getoption("--all-cuts"))


def places(case: Case, thorough: bool) -> list[int]:
    """Returns where a case's text is cut: everywhere, or at a few random positions, because the time is quadratic."""
    every = range(1, len(case.text))
    return list(every) if thorough else sorted(random.Random(case.name).sample(every, min(8, len(every))))


@each_family
@pytest.mark.slow
def test_any_cut_gives_the_same_answer(family: str, thorough: bool) -> None:
    """The text is cut into pieces of every size, and into two pieces at some or all positions."""
    for case in read_cases(family):
        whole = parse(case.parser(), [case.text])
        for size in (1, 2, 3, 7, 13):
            pieces = [case.text[at : at + size] for at in range(0, len(case.text), size)]
            assert parse(case.parser(), pieces) == whole, (case.name, size)
        for at in places(case, thorough):
            assert parse(case.parser(), [case.text[:at], case.text[at:]]) == whole, (case.name, at)


@each_family
def test_truncated_anywhere_is_visible(family: str, thorough: bool) -> None:
    """Nothing raises an error, and a part of the truncated call is visible as text, reasoning or a call."""
    for case in read_cases(family):
        for at in places(case, thorough):
            answer = parse(case.parser(), [case.text[:at]])
            seen = answer.content + answer.reasoning + "".join(name for name, _ in answer.calls)
            so_far = case.text[:at].rstrip()
            assert seen or not so_far or so_far.endswith(case.parser().tags), (case.name, at)


@each_family
def test_a_truncated_call_leaves_no_markup_in_the_content(family: str, thorough: bool) -> None:
    for case in read_cases(family):
        parser, before = case.parser(), CompletedChoice()
        for character in case.text:
            before.add(parser.feed(character))
            if before.calls:
                break
        whole = parse(case.parser(), [case.text])
        if not whole.calls or whole.content.strip() != before.content.strip():
            continue  # there is content after the call, in which half a tag is text
        for at in places(case, thorough):
            answer = parse(case.parser(), [case.text[:at]])
            assert not answer.calls or whole.content.startswith(answer.content.rstrip()), (case.name, at)


@each_family
def test_the_token_that_ends_a_text_is_never_shown(family: str, thorough: bool) -> None:
    for case in read_cases(family):
        endings = {tag for syntax in getattr(case.parser(), "syntaxes", ()) for tag in syntax.noise}
        for ending in sorted(endings):
            for cut in random.Random(case.name).sample(
                range(len(case.text)), min(6 if thorough else 2, len(case.text))
            ):
                answer, parser = CompletedChoice(), case.parser()
                for events in (parser.feed(case.text[:cut]), parser.finish(ending)):
                    answer.add(events)
                whole = parse(case.parser(), [case.text[:cut]])
                shown = repr(answer).count(ending)
                assert shown <= repr(whole).count(ending), (case.name, ending, case.text[:cut])


@cache
def tags_and_like(family: str) -> list[str]:
    tags = list(family_parser(family).tags)
    return [*tags, *(tag.replace("<", "</", 1) for tag in tags), *(tag[: len(tag) // 2] for tag in tags)]


def soup(family: str, rng: random.Random) -> str:
    tags = tags_and_like(family)
    texts = ("name", '"name"', '"arguments"', "f", "null", "😀", '{"name": "f", "arguments": {', "\\u12")
    bits = [*"{}[]()\",:'\\ \n=<>|a1é", *texts]
    return "".join(rng.choice(tags if tags and rng.random() < 0.3 else bits) for _ in range(rng.randint(1, 40)))


@each_family
def test_soups_never_raise_and_cuts_agree(family: str, thorough: bool) -> None:
    rng = random.Random(family)
    for number in range(600 if thorough else 60):
        text = soup(family, rng)
        at = rng.randint(0, len(text))
        whole = parse(family_parser(family), [text])
        assert parse(family_parser(family), [text[:at], text[at:]]) == whole, text
        if number % 5 == 0:
            assert parse(family_parser(family), list(text)) == whole, text


def shreds(cases: list[Case], rng: random.Random) -> str:
    """Returns pieces of real outputs in the wrong order, mixed with markup and words."""
    bits = []
    for n in range(rng.randint(1, 8)):
        text = rng.choice(cases).text
        start = rng.randint(0, len(text))
        piece = text[start : start + rng.randint(1, 60)]
        bits += [piece, soup(cases[0].family, rng)[:20] if rng.random() < 0.4 else "", f"ж{n}ж"]
    return "".join(bits)


@each_family
def test_shredded_outputs_never_raise_and_cuts_agree(family: str, thorough: bool) -> None:
    rng = random.Random("shreds" + family)
    cases = read_cases(family)
    for _ in range(100 if thorough else 10):
        text, case = shreds(cases, rng), rng.choice(cases)
        cuts = sorted(rng.randint(0, len(text)) for _ in range(2))
        whole = parse(case.parser(), [text])
        pieces = [text[: cuts[0]], text[cuts[0] : cuts[1]], text[cuts[1] :]]
        assert parse(case.parser(), pieces) == whole, text
        assert parse(case.parser(), list(text)) == whole, text


@each_family
def test_letters_between_markup_are_never_lost(family: str, thorough: bool) -> None:
    """Letters outside of tags and keys are in the output exactly once, and in order within each channel."""
    rng = random.Random("letters" + family)
    for _ in range(100 if thorough else 20):
        words = [f"ж{n}ж" for n in range(rng.randint(1, 6))]
        text = "".join(soup(family, rng) + word for word in words)
        answer = parse(family_parser(family), [text])
        seen = answer.content + answer.reasoning + "".join(name + args for name, args in answer.calls)
        assert all(word in seen for word in words), text


@each_family
def test_plain_text_passes_unchanged_and_undelayed(family: str) -> None:
    """At any moment the parser holds back at most the beginning of one of its tags."""
    parser = family_parser(family)
    fed, answer = "", CompletedChoice()
    for chunk in ("It", " is 20", " °C", ".\n", "\n", "*", " So ", "😀", "; x < y", " [", "1]", " `f`.", "\n"):
        fed += chunk
        answer.add(parser.feed(chunk))
        seen = answer.content + answer.reasoning
        assert fed.startswith(seen)
        held = fed[len(seen) :]
        assert not held or any(tag.startswith(held) for tag in parser.tags)
    answer.add(parser.finish())
    assert answer.content + answer.reasoning == fed


def work_of(parser: AnswerParser, chunks: list[str]) -> int:
    """Returns the number of function calls while parsing."""
    return calls_of(lambda: list(map(parser.feed, chunks)))


@pytest.mark.slow
@each_long
def test_work_is_linear_in_a_long_value(case: Case) -> None:
    """If a value is twice as long, parsing takes at most twice the work, and the buffer does not grow."""
    head, tail = case.text.split(case.want["long"], 1)
    work = []
    for size in (2_000, 4_000):
        body = "x" * size
        parser = case.parser()
        parser.feed(head)
        work.append(work_of(parser, [body[at : at + 1] for at in range(size)]))
        assert len(vars(parser)["scanner"].text) < 64
        parser.feed(tail)
        parser.finish()
    assert work[1] < 2.1 * work[0]


HOSTILE = [*"<[{(\"'\\", "', ", "f(a='", '{"a":', '{"name": "f", "arguments": {', "to=", "<![CDATA["]


@pytest.mark.slow
@each_family
def test_t12_work_is_linear_in_hostile_text(family: str) -> None:
    """Any repeated text in one chunk, after any tag of the family, costs no more than its length."""
    tags = family_parser(family).tags
    units = [*HOSTILE, "".join(tags)]
    texts = [("", unit) for unit in (*units, *tags, *(tag + '{"' for tag in tags))]
    inside = (tags[0], tags[0] + '[f(a="', tags[0] + '{"name": "f", "arguments": {"a": "')
    for before, unit in (*texts, *itertools.product(inside, units)):
        work = []
        for size in (1000, 2000):
            parser = family_parser(family)
            work.append(work_of(parser, [before + unit * (size // len(unit))]))
            parser.finish()
        assert work[1] < 2.2 * work[0] + 200, (before, unit)


@pytest.mark.slow
@each_long
def test_a_megabyte_argument_arrives_whole(case: Case) -> None:
    body = ("0123456789abcde " * 65536)[: 1 << 20]
    text = case.text.replace(case.want["long"], body, 1)
    answer = parse(case.parser(), [text[at : at + 4096] for at in range(0, len(text), 4096)])
    seen = answer.content + answer.reasoning + "".join(args for _, args in answer.calls)
    assert body in seen

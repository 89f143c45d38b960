"""The generator and the evaluation are repeatable, and have no wordings in common."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tools.demo_model import (
    cases,
    checks,
    corpus,
    drills,
    filler,
    forms,
    heldout,
    heldout_fresh,
    languages,
    meeting,
    words,
)
from tools.demo_model.checks import Check
from tools.demo_model.heldout_tools import PARALLEL, RESULTS, SINGLE


def test_a_seed_is_a_dialog() -> None:
    assert [corpus.draw(seed) for seed in range(40)] == [corpus.draw(seed) for seed in range(40)]


def test_the_text_is_the_one_that_the_shipped_weights_were_trained_on() -> None:
    """If the text changes, the model must be trained again."""
    drawn = repr([corpus.draw(seed) for seed in range(200)])
    assert (
        hashlib.sha256(drawn.encode()).hexdigest() == "bf88cd2bdb747b9e188f2d7838c46c60ae24d267958f961fed9cbadbcb937c25"
    )


def test_dialogs_alternate_and_end_with_the_model() -> None:
    for seed in range(300):
        roles = [m["role"] for m in corpus.draw(seed)[0].messages if m["role"] != "system"]
        assert roles[0] == "user"
        assert roles[-1] == "assistant"
        assert ("user", "user") not in itertools.pairwise(roles)


def test_calls_are_of_declared_tools_and_parameters() -> None:
    for seed in range(600):
        dialog, _ = corpus.draw(seed)
        tools = {tool["function"]["name"]: tool["function"] for tool in dialog.tools}
        for message in dialog.messages:
            for call in message.get("tool_calls", ()):
                declared = tools[call["function"]["name"]]["parameters"]["properties"]
                given = call["function"]["arguments"]
                assert list(given) == [name for name in declared if name in given]
                for name, value in given.items():
                    if "enum" in declared[name]:
                        assert value in declared[name]["enum"]


def test_words_of_the_evaluation_are_in_no_list() -> None:
    lexicon = {word.lower() for word in words.LEXICON}
    for word in (*heldout.NAMES, *heldout.CITIES, *heldout.WORDS):
        assert word.lower() not in lexicon, word


@pytest.mark.slow
def test_wordings_of_the_evaluation_are_never_drawn() -> None:
    seen = [m["content"] for seed in range(2000) for m in corpus.draw(seed)[0].messages if m["role"] == "user"]
    assert not any(heldout.held_out(text) for text in seen)
    assert heldout.held_out("Thanks! which endpoint tokenizes text")


def test_sums_of_the_evaluation_are_never_drawn() -> None:
    r = random.Random(1)
    answers = (drills.add(r).answer for _ in range(20_000))
    drawn = {(int(m[1]), int(m[2])) for m in map(re.compile(r"(\d+) \+ (\d+) =").match, answers) if m}
    assert len(drawn) > 5000
    assert not drawn & drills.HELD_OUT_SUMS


def test_ranges_of_the_evaluation_are_never_counted() -> None:
    r = random.Random(1)
    ask = (drills.count, lambda r: languages.count(r, "de"), lambda r: languages.count(r, "es"))
    answers = {re.sub(r"[^0-9, ]", "", r.choice(ask)(r).answer) for _ in range(10_000)}
    for low, high in drills.HELD_OUT_COUNTS:
        assert ", ".join(map(str, range(low, high + 1))) not in answers


def test_spelling_reaches_every_piece_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drills, "PIECES", [f"q{letter}x" for letter in "abcdefghijklmnop"])
    r = random.Random(1)
    spelled = "".join(drills.spell(r).answer for _ in range(400))
    assert all(spelled.count("-".join(piece)) > 3 for piece in drills.PIECES)


def test_spelled_answers_are_the_letters_of_the_words_asked_for() -> None:
    r = random.Random(2)
    for _ in range(300):
        exchange = drills.spell(r)
        if "letter of" not in exchange.answer:
            for word in exchange.answer.split(", "):
                assert word.replace("-", "") in exchange.user


def test_a_name_from_the_system_prompt_is_the_answer() -> None:
    r = random.Random(3)
    for _ in range(300):
        assert "Zyx" in meeting.naming(r, "Zyx")
    named = [d for d in (corpus.persona(r, False) for _ in range(200)) if d.messages[0]["role"] == "system"]
    for dialog in named:
        assert not any("demo model" in m["content"].lower() for m in dialog.messages if m["role"] == "assistant")


def test_weights_cover_answers_and_not_frames(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    dialog = corpus.Dialog(
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes", "reasoning_content": "hm"}]
    )
    [(ids, weights)] = corpus.Renderer(tokenizer).examples([dialog])
    trained = tokenizer.decode([i for i, w in zip(ids, weights, strict=True) if w == 1.0], skip_special_tokens=False)
    assert trained == "hm\n</think>\nyes<|im_end|>"


def test_answers_under_a_schema_are_json_and_their_values_are_learned() -> None:
    r = random.Random(4)
    for _ in range(300):
        written = forms.schema(r, lambda r: corpus.draw(r.getrandbits(60))[0])
        text = "".join(part for part, _, _ in written.parts)
        call = text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
        assert isinstance(json.loads(call), dict | list), text
        assert written.parts[0][1] < forms.LEARNED
        assert written.dialog.messages[-1]["role"] == "user"


def test_an_answer_in_parts_ends_with_what_is_learned(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    parts = [('{"', 0.02, False), ("ab", 0.1, True), ('": "', 0.1, False), ("x", 1.0, False), ('"}', 1.0, False)]
    asked = forms.Written(corpus.Dialog([{"role": "user", "content": "hi"}]), parts)
    ids, weights = corpus.Renderer(tokenizer).written(asked)
    trained = tokenizer.decode([i for i, w in zip(ids, weights, strict=True) if w == 1.0], skip_special_tokens=False)
    assert trained == 'x"}<|im_end|>'
    assert tokenizer.decode(ids).endswith('assistant\n{"ab": "x"}')
    assert ("a", "b") in itertools.pairwise(tokenizer.decode([i]) for i in ids)


def test_texts_before_a_question_have_no_marks_of_the_template() -> None:
    r = random.Random(6)
    assert not any("<|" in filler.passages(r, 400) for _ in range(200))


def test_forms_of_the_evaluation_are_thirty() -> None:
    assert len({schema["title"] for schema, _ in heldout.FORMS}) == 30
    assert all(1 <= len(schema["properties"]) <= 6 for schema, _ in heldout.FORMS)


def test_evaluation_is_well_formed() -> None:
    all_cases = cases.all_cases()
    assert len(all_cases) > 500
    assert {case.group for case in all_cases} == {"chat", "tools", "parallel", "thinking", "json", "fresh"}
    for name, _, parameters, request, arguments in (*SINGLE, *heldout_fresh.TOOLS):
        assert set(arguments) <= set(parameters), name
        for value in arguments.values():
            assert isinstance(value, bool) or str(value).lower() in request.lower(), name
    for indexes, _, expected in PARALLEL:
        assert {i for i, _ in expected} == set(indexes)
        assert len(expected) == 2
        assert all(set(arguments) <= set(SINGLE[i][2]) for i, arguments in expected)
    assert all(index < len(SINGLE) for index, _, _ in RESULTS)


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (checks.says("a|b", "c"), "B C", "b"),
        (checks.exactly("one two"), '"one two".', "one two three"),
        (checks.spells("abba"), "a-b-b-a", "a-b-a"),
        (checks.counts(3, 5), "3, 4, 5.", "3, 4, 5, 6."),
        (checks.sums_to(7), "3 + 4 = 7.", "3 + 4 = 8."),
        (checks.speaks("de", "kira"), "Du heißt Kira.", "Your name is Kira."),
        (checks.speaks("es", "kira"), "Te llamas Kira.", "Du heißt Kira."),
        (checks.is_json(), '{"a": 1}', '{"a": 1}}'),
        (checks.is_json({"a": 1}), '{"a":1}', '{"a": 2}'),
        (checks.calls(("f", {"a": 1})), CALL, f"Sure. {CALL}"),
        (checks.calls(("f", {"a": 1}), ("f", {"a": 1})), f"{CALL}\n{CALL}", CALL),
        (checks.plain(checks.says("hello")), "Hello!", f"Hello! {CALL}"),
        (checks.thinks(checks.says("x")), "I think.\n</think>\nx", "x"),
    ],
)
def test_checks(check: Check, good: str, bad: str) -> None:
    assert check(good)
    assert not check(bad)


def test_calls_that_are_no_json() -> None:
    assert checks.calls_of("<tool_call>\n{\n</tool_call>") is None
    assert checks.calls_of("words") is None
    assert checks.calls_of(CALL) == [json.loads('{"name": "f", "arguments": {"a": 1}}')]


def test_thoughts_that_are_not_well_formed() -> None:
    for text in ("no end", "</think>\nx", "a\n</think>\n", "a</think>b</think>c"):
        assert checks.split_thought(text) is None

"""The generator and the evaluation are repeatable, and have no wordings in common."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tools.demo_model import cases, checks, corpus, drills, forms, heldout, languages, words
from tools.demo_model.checks import Check
from tools.demo_model.heldout import PARALLEL, RESULTS, SINGLE


def test_the_text_is_the_one_that_the_shipped_weights_were_trained_on() -> None:
    """If the text changes, the model must be trained again."""
    drawn = repr([corpus.draw(seed) for seed in range(200)])
    assert (
        hashlib.sha256(drawn.encode()).hexdigest() == "bf88cd2bdb747b9e188f2d7838c46c60ae24d267958f961fed9cbadbcb937c25"
    )


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


def test_weights_cover_answers_and_not_frames(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    dialog = corpus.Dialog(
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes", "reasoning_content": "hm"}]
    )
    [(ids, weights)] = corpus.Renderer(tokenizer).examples([dialog])
    trained = tokenizer.decode([i for i, w in zip(ids, weights, strict=True) if w == 1.0], skip_special_tokens=False)
    assert trained == "hm\n</think>\nyes<|im_end|>"


def test_an_answer_in_parts_ends_with_what_is_learned(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    parts = [('{"', 0.02, False), ("ab", 0.1, True), ('": "', 0.1, False), ("x", 1.0, False), ('"}', 1.0, False)]
    asked = forms.Written(corpus.Dialog([{"role": "user", "content": "hi"}]), parts)
    ids, weights = corpus.Renderer(tokenizer).written(asked)
    trained = tokenizer.decode([i for i, w in zip(ids, weights, strict=True) if w == 1.0], skip_special_tokens=False)
    assert trained == 'x"}<|im_end|>'
    assert tokenizer.decode(ids).endswith('assistant\n{"ab": "x"}')
    assert ("a", "b") in itertools.pairwise(tokenizer.decode([i]) for i in ids)


def test_evaluation_is_well_formed() -> None:
    all_cases = cases.all_cases()
    assert len(all_cases) > 500
    assert {case.group for case in all_cases} == {"chat", "tools", "parallel", "thinking", "json", "fresh"}
    for name, _, parameters, request, arguments in (*SINGLE, *heldout.FRESH_TOOLS):
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

"""XGrammar's library on the paged engine: its masks compared with llguidance's, and masks that take too long.

Skipped if its packages are not installed.
"""

import json
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from lean_ovms.engine.paged.sequence import NoToken
from lean_ovms.errors import BadRequest, GrammarInvalid, GrammarTooComplex, Unavailable
from lean_ovms.features.guidance.child.library import Guidance
from lean_ovms.features.structured_output.child.checker import CheckerSettings, ProcessGrammarChecker
from lean_ovms.features.structured_output.child.vocabulary import TOO_COMPLEX, padded
from lean_ovms.features.structured_output.constraint import build
from lean_ovms.features.structured_output.limits import GrammarBounds
from lean_ovms.features.xgrammar.child import core, matcher
from lean_ovms.features.xgrammar.child.library import PROCESS, XGrammarLibrary
from lean_ovms.types import OutputConstraint
from tests.features.guidance import test_grammar as grammars
from tests.features.guidance.test_grammar import (
    EOS,
    PIECES,
    WIDTH,
    allowed,
    begin,
    constraint,
    fits,
    grammar,
    tag,
    tokens,
)
from tests.features.xgrammar.compiled_here import xgrammar_library

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(XGrammarLibrary().missing), reason=f"xgrammar is not installed: {XGrammarLibrary.install}"),
]
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}


@pytest.fixture(scope="module")
def guidance():
    return Guidance(PIECES, WIDTH, [EOS, 0])


@pytest.fixture(scope="module")
def library():
    with xgrammar_library(PIECES, WIDTH, [EOS, 0]) as found:
        yield found


def schema(value):
    return constraint({"type": "json_schema", "json_schema": value})


def calls(how):
    return build(OutputConstraint(tool_calls=how), grammars.context("hermes3", "qwen3", TOOL)).tag


FORMS = {
    "object": schema({"type": "object"}),
    "numbers": schema({"type": "array", "items": {"type": "number"}, "maxItems": 3}),
    "enum": schema({"enum": ["a", "ab", 1, None]}),
    "pattern": schema({"type": "string", "pattern": "^[a-c]+$"}),
    "one of": schema({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}),
    "regex": constraint({"type": "regex", "pattern": "[a-z]{3}-\\d{4}"}),
    "choice": constraint({"type": "or", "elements": [{"type": "const_string", "value": v} for v in ("no", "now")]}),
    "calls": calls("schema"),
    "required": calls("required"),
    "free text": tag(type="any_text", excludes=["no"]),
    "until": tag(type="tag", begin="<a>", content={"type": "any_text"}, end="</a>"),
    "until lines": tag(type="tag", begin="<a>", content={"type": "any_text"}, end="\n</a>\n"),
    "nested": grammar('root ::= "(" root ")" | ""'),
}


def in_characters(ids):
    """Returns the texts without those that are not whole characters: XGrammar allows any bytes in free text,
    llguidance does not."""
    found = set()
    for i in ids:
        try:
            PIECES[i].decode()
        except UnicodeDecodeError:
            continue
        found.add(i)
    return found


STRINGS = ("object",)
"""XGrammar allows control characters in strings, and counts the characters of an escape sequence."""


@pytest.mark.parametrize("name", FORMS)
def test_both_libraries_allow_the_same_tokens_and_foresee_the_same_text(library, guidance, name):
    for seed in range(2):
        dice = random.Random(seed)
        ours, theirs = begin(library, FORMS[name]), begin(guidance, FORMS[name])
        for _ in range(25):
            found, wanted = in_characters(allowed(ours)), in_characters(allowed(theirs))
            assert found >= wanted if name in STRINGS else found == wanted
            assert name in STRINGS or ours.forced() == theirs.forced()
            if not (choice := sorted(wanted - {EOS, 0})):
                break
            token = dice.choice(choice)
            assert ours.consume(token) is theirs.consume(token) is False


def test_a_regular_expression_that_it_cannot_impose_is_refused(library):
    with pytest.raises(GrammarInvalid, match="not supported"):
        library.compile(constraint({"type": "regex", "pattern": r"\bword\b"}))


@pytest.mark.parametrize(
    ("value", "notices"),
    [
        ({"type": "array", "uniqueItems": True}, ["uniqueItems"]),
        ({"properties": {"not": {"type": "string"}}}, []),
        ({"type": "integer", "multipleOf": 5}, []),
        ({"type": "number", "multipleOf": 5}, ["multipleOf"]),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, ["oneOf (treated as anyOf)"]),
        ({"anyOf": [{"type": "string"}], "maxLength": 3}, ["keywords beside anyOf"]),
        ({"type": "string", "pattern": "a+", "maxLength": 3}, ["lengths beside a pattern"]),
    ],
)
def test_what_it_ignores_in_a_schema_is_told(library, value, notices):
    assert list(library.check(schema(value), GrammarBounds()).notices) == notices


@pytest.mark.parametrize("family", ["pythonic", "gemma4", "functiongemma", "lfm2"])
def test_calls_in_a_notation_of_their_own_are_held_to_its_syntax_alone(library, family):
    form = build(OutputConstraint(tool_calls="required"), grammars.context(family, None, TOOL)).tag
    assert library.check(form, GrammarBounds()).notices == ("the schemas of arguments in this model's notation",)
    values = {
        "pythonic": '[f(x=1, y="a", z=[True, {"b": None}])]',
        "lfm2": "<|tool_call_start|>[f(x=-1.5)]<|tool_call_end|>",
    }
    values["gemma4"] = '<|tool_call>call:f{x:1,y:<|"|>a<|"|>,z:[{b:true}]}<tool_call|>'
    values["functiongemma"] = "<start_function_call>call:f{x:1,y:<escape>a<escape>}<end_function_call>"
    assert fits(library, form, values[family])
    assert not fits(library, form, values[family].replace(":1", ":?").replace("=1", "=?").replace("1.5", "'"))


def test_a_grammar_in_larks_notation(library):
    form = grammar('start: "n=" value\nvalue: %json {"enum": [1, 2]}\n')
    assert fits(library, form, "n=2")
    assert not fits(library, form, "n=3")


def test_a_token_against_the_mask_leaves_none(library):
    text = begin(library, grammar('root ::= "a" "b"'))
    text.consume(tokens("b")[0])
    for one in (text, text.fork()):
        with pytest.raises(NoToken, match=TOO_COMPLEX):
            allowed(one)
        assert one.forced() == []


def test_what_was_dropped_can_begin_until_the_next_time(library):
    one = grammar('root ::= "dropped"')
    library.compile(one)
    library.clear()
    assert library.matcher(one, frozenset({EOS})).forced()
    library.clear()
    library.clear()
    with pytest.raises(BadRequest, match="try again"):
        library.matcher(one, frozenset({EOS}))


def test_masks_that_take_too_long_together_end_the_text_and_its_grammar(library, monkeypatch):
    form = grammar('root ::= "together" [0-9]')
    text, again = begin(library, form), begin(library, form)
    assert allowed(text)
    monkeypatch.setattr(matcher, "FREE_S", -1.0)
    monkeypatch.setattr(matcher, "MOST_S", 1.5)
    text.consume(tokens("t")[0])
    assert allowed(text)
    text.consume(tokens("o")[0])
    for one in (text, text.fork(), again):  # and other matchers of this grammar
        with pytest.raises(NoToken):
            allowed(one)
    with pytest.raises(GrammarTooComplex):
        library.matcher(form, frozenset({EOS}))


def test_a_mask_that_does_not_come_is_an_error_of_its_text_alone(monkeypatch):
    go_on, fill = threading.Event(), core.fill
    with xgrammar_library(PIECES, WIDTH, [EOS]) as library:
        sources = [grammar(f'root ::= "{letter}"') for letter in "abc"]
        made = [begin(library, source) for source in sources]
        again, stuck = begin(library, sources[1]), made[1]._state
        monkeypatch.setattr(matcher, "MOST_S", -0.01)
        monkeypatch.setattr(core, "fill", lambda state, mask: (state is stuck and go_on.wait(60), fill(state, mask)))
        try:
            with pytest.raises(NoToken):
                allowed(made[1])
            monkeypatch.undo()
            assert library._thread.left == 1
            assert [allowed(made[place]) for place in (0, 2)] == [{tokens("a")[0]}, {tokens("c")[0]}]
            for one in (made[1].fork(), again):  # and other matchers of this grammar
                with pytest.raises(NoToken):
                    allowed(one)
            with pytest.raises(GrammarTooComplex):
                library.matcher(sources[1], frozenset({EOS}))
            monkeypatch.setattr(matcher, "MOST_LEFT", 1)
            with pytest.raises(Unavailable):
                library.compile(grammar('root ::= "new"'))
        finally:
            go_on.set()
        while library._thread.left:
            threading.Event().wait(0.01)
        library.compile(grammar('root ::= "new"'))


def test_a_grammar_that_explodes_where_the_trial_does_not_look_holds_nobody_for_long(library):
    text = begin(library, grammar('root ::= "Q" s | [a-z]*\ns ::= s s | [a-z] | [a-z] s'))
    began = time.monotonic()

    def write(letters):
        for letter in letters:
            allowed(text)
            text.consume(tokens(letter)[0])

    with pytest.raises(NoToken, match=TOO_COMPLEX):
        write("Q" + "a" * 2000)
    assert time.monotonic() - began < 60


def test_looking_ahead_stops_when_it_takes_long(library, monkeypatch):
    text = begin(library, grammar('root ::= "abc"'))
    monkeypatch.setattr(matcher, "GUESS_S", -1)
    assert text.forced()
    assert text.forced() == []
    assert text.fork().forced() == []
    assert allowed(text)


def test_the_process_compiles_and_is_killed_when_it_takes_too_long():
    pieces = padded(PIECES, WIDTH)
    settings = CheckerSettings(
        model_dir="", width=WIDTH, timeout_s=20, memory_bytes=256 << 20, probe_s=1, pieces=pieces, eos=[EOS]
    )
    checker = ProcessGrammarChecker(settings, PROCESS)
    try:
        answer = checker.ask(grammar('root ::= "a" | "b"'), GrammarBounds())
        assert json.loads(answer["compiled"])
        with pytest.raises(GrammarInvalid, match="not defined"):
            checker.ask(grammar("root ::= x"), GrammarBounds())
        checker.settings = CheckerSettings(model_dir="", width=0, timeout_s=0.3, memory_bytes=0, probe_s=0)
        with pytest.raises(GrammarTooComplex, match="compiling it took more than"):
            checker.ask(constraint({"type": "regex", "pattern": "([a-z]{1,90}[0-9a-z]{1,90}){1,100}"}), GrammarBounds())
        assert checker.pid is None
    finally:
        checker.stop()


def test_torch_is_not_imported_where_it_is_installed(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    (tmp_path / "transformers.py").write_text("raise SystemExit('transformers was imported')\n")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from lean_ovms.features.xgrammar.child import core\n"
        "core.load()\n"
        "assert not {'torch', 'transformers', 'xgrammar', 'pydantic', 'openvino'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_version_says_so(monkeypatch):
    monkeypatch.setattr(core, "accept", lambda matcher, token: False)
    with pytest.raises(core.NotUsable, match="xgrammar cannot be used: a test grammar did not match as expected"):
        core.load.__wrapped__()


def test_masks_are_as_wide_as_the_logits(library):
    line = np.zeros(WIDTH, np.float32)
    begin(library, tag(type="any_text")).apply(line)
    assert np.isneginf(line[len(PIECES) :]).all()

"""The checker process is started when needed, killed when it takes too long, and replaced when it dies."""

import contextlib
import json
import os
import pathlib
import signal
import sys

import pytest

from lean_ovms.config import DEMO_MODEL
from lean_ovms.errors import GrammarInvalid, GrammarTooComplex, Unavailable
from lean_ovms.features.model_families.registry import registry
from lean_ovms.features.structured_output.child.checker import CheckerSettings, ProcessGrammarChecker
from lean_ovms.features.structured_output.child.genai.compiler import COMMAND
from lean_ovms.features.structured_output.constraint import build
from lean_ovms.features.structured_output.limits import GrammarBounds, GrammarCost
from lean_ovms.grammar.call_syntax import GrammarContext
from lean_ovms.types import OutputConstraint

FAKE = pathlib.Path(__file__).with_name("fake_checker.py")
SETTINGS = CheckerSettings(model_dir="m", width=10, timeout_s=5, memory_bytes=1 << 20)
IMPATIENT = CheckerSettings(model_dir="m", width=10, timeout_s=0.1, memory_bytes=1 << 20, probe_s=0)


@pytest.fixture
def make():
    made = []

    def checker(part="ok", settings=SETTINGS):
        made.append(ProcessGrammarChecker(settings, [sys.executable, "-S", str(FAKE), part]))
        return made[-1]

    yield checker
    for one in made:
        one.stop()


def structural(form):
    return json.dumps({"type": "structural_tag", "format": form})


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_is_started_by_the_first_grammar_and_kept(make):
    checker = make()
    assert checker.pid is None
    assert checker.check("good", GrammarBounds()) == GrammarCost(0.5, 4)
    pid = checker.pid
    with pytest.raises(GrammarInvalid, match="it is wrong"):
        checker.check("wrong", GrammarBounds())
    assert checker.check("better", GrammarBounds()) == GrammarCost(0.5, 6)
    assert checker.pid == pid
    checker.stop()
    assert not alive(pid)
    assert checker.stop() is None


@pytest.mark.slow
@pytest.mark.parametrize("tag", ["work", "hang"])
def test_one_that_takes_too_long_is_killed_and_the_next_gets_a_new_process(make, tag):
    checker = make(settings=IMPATIENT)
    checker._start()
    pid = checker.pid
    with pytest.raises(GrammarTooComplex, match=r"0\.1 s"):
        checker.check(tag, GrammarBounds())
    assert checker.pid is None
    assert not alive(pid)
    checker.settings = SETTINGS
    assert checker.check("good", GrammarBounds()) == GrammarCost(0.5, 4)


@pytest.mark.slow
def test_time_without_cpu_does_not_count_on_a_busy_machine(make):
    assert make(settings=IMPATIENT).check("wait", GrammarBounds()) == GrammarCost(0.5, 4)


def test_one_that_dies_is_replaced_and_being_ended_while_it_waits_is_no_grammars_fault(make):
    checker = make()
    with pytest.raises(GrammarTooComplex, match="memory"):
        checker.check("crash", GrammarBounds())
    assert checker.check("good", GrammarBounds()) == GrammarCost(0.5, 4)
    checker.check("good", GrammarBounds())
    os.kill(checker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, checker.pid, os.WEXITED | os.WNOWAIT)
    assert checker.check("good", GrammarBounds()) == GrammarCost(0.5, 4)


def test_a_helper_that_does_not_start_is_unavailable(make):
    with pytest.raises(Unavailable):
        make("dies").check("good", GrammarBounds())
    with pytest.raises(Unavailable):
        ProcessGrammarChecker(SETTINGS, ["/no/such/program"]).check("good", GrammarBounds())


SLOW = {"ambiguous": 'root ::= e\ne ::= e e e | [a-z] | ""', "rules": "root ::= (a){100}\na ::= (b){100}\nb ::= [a-z]?"}
FAST = {
    "date": {"type": "string", "format": "date-time"},
    "e-mail": {"type": "string", "format": "email"},
    "uuid": {"type": "string", "format": "uuid"},
    "url": {"type": "string", "pattern": r"^https?://([a-z0-9-]+\.)+[a-z]{2,}(/[^\s]*)?$"},
    "length": {"type": "string", "maxLength": 250},
    "any": {"type": "object"},
    "enum": {"enum": [f"value {i}" for i in range(1500)]},
    "optional": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(40)}},
    "tree": {"type": "object", "properties": {"x": {"type": "array", "items": {"$ref": "#"}}}, "required": ["x"]},
}


@pytest.mark.parametrize(
    ("schema", "right"),
    [
        ({"enum": [{"json_schema": 5}], "default": {"json_schema": [1]}}, True),
        ({"properties": {"json_schema": {"type": "string"}}}, True),
        ({"properties": {"json_schema": 5}}, False),
        (True, True),
        ({"items": {"type": "nope"}}, False),
        (5, False),
    ],
)
@pytest.mark.parametrize("kind", ["json_schema", "qwen_xml_parameter"])
@pytest.mark.slow
def test_schemas_are_checked_and_values_in_them_are_not(kind, schema, right):
    process = pytest.importorskip("lean_ovms.features.structured_output.child.genai.process")
    tag = {"type": "tag", "begin": "a", "content": {"type": kind, "json_schema": schema}, "end": "b"}
    with contextlib.nullcontext() if right else pytest.raises(GrammarInvalid, match="not a JSON schema"):
        process.check_schemas({"type": "structural_tag", "format": {"type": "sequence", "elements": [tag]}})


@pytest.mark.model
def test_the_real_helper_distinguishes_good_from_wrong_and_slow_and_survives_what_kills_it(caplog):
    settings = CheckerSettings(model_dir=str(DEMO_MODEL), width=2048, timeout_s=10, memory_bytes=512 << 20)
    checker = ProcessGrammarChecker(settings, COMMAND)

    def check(form):
        return checker.check(structural(form), GrammarBounds(bytes=1 << 20, nesting=1 << 20))

    try:
        seconds, used, *_ = check({"type": "regex", "pattern": "[a-z]{3}"})
        assert seconds < 10
        assert used >= 0
        for name, schema in FAST.items():
            context = GrammarContext(form=registry().output_form(None, None), prompt_tail="", tools=())
            wanted = OutputConstraint(format={"type": "json_schema", "json_schema": schema})
            cost = checker.check(build(wanted, context).tag, GrammarBounds(bytes=1 << 19))
            assert 0 < cost.token_s < 0.2, name
        for name, text in SLOW.items():
            with pytest.raises(GrammarTooComplex):
                pytest.fail(f"{name}: {check({'type': 'grammar', 'grammar': text})}")
        for wrong, why in (
            ({"type": "regex", "pattern": "(a"}, "parenthesis"),
            ({"type": "grammar", "grammar": "x ::= y"}, "root"),
            ({"type": "nope"}, "nope"),
            ({"type": "json_schema", "json_schema": {"type": 5}}, "not a JSON schema: 5 at #.type is not a type"),
        ):
            with pytest.raises(GrammarInvalid, match=why) as caught:
                check(wrong)
            assert "/" not in caught.value.message.replace("#/", "")
        with pytest.raises(GrammarTooComplex):
            check({"type": "regex", "pattern": "(" * 40000 + "a" + ")" * 40000})  # overflows xgrammar's stack
        assert check({"type": "regex", "pattern": "[a-z]{3}"})
    finally:
        checker.stop()
    assert "exited with status" in caplog.text

"""The checker process: started when needed, killed when it takes too long, replaced when it dies."""

import json
import os
import pathlib
import signal
import sys

import pytest

from lean_ovms.config import DEMO_MODEL
from lean_ovms.engine.generation.grammar_checker import CheckerSettings, ProcessGrammarChecker
from lean_ovms.errors import GrammarInvalid, GrammarTooComplex, Unavailable

FAKE = pathlib.Path(__file__).with_name("fake_checker.py")
SETTINGS = CheckerSettings(model_dir="m", width=10, timeout_s=5, memory_bytes=1 << 20)
IMPATIENT = CheckerSettings(model_dir="m", width=10, timeout_s=0.1, memory_bytes=1 << 20)


@pytest.fixture
def make():
    made = []

    def checker(part="ok", settings=SETTINGS):
        made.append(ProcessGrammarChecker(settings, [sys.executable, "-S", str(FAKE), part]))
        return made[-1]

    yield checker
    for one in made:
        one.stop()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_is_started_by_the_first_grammar_and_kept(make):
    checker = make()
    assert checker.pid is None
    assert checker.check("good") == (0.5, 4)
    pid = checker.pid
    assert checker.check("better") == (0.5, 6)
    assert checker.pid == pid


def test_a_wrong_grammar_is_told_in_the_helpers_words(make):
    with pytest.raises(GrammarInvalid, match="it is wrong"):
        make().check("wrong")


@pytest.mark.parametrize("tag", ["work", "hang"])
def test_one_that_takes_too_long_is_killed_and_the_next_gets_a_new_process(make, tag):
    checker = make(settings=IMPATIENT)
    checker._start()
    pid = checker.pid
    with pytest.raises(GrammarTooComplex, match=r"0\.1 s"):
        checker.check(tag)
    assert checker.pid is None
    assert not alive(pid)
    checker.settings = SETTINGS
    assert checker.check("good") == (0.5, 4)


def test_time_without_cpu_does_not_count_on_a_busy_machine(make):
    assert make(settings=IMPATIENT).check("wait") == (0.5, 4)


def test_one_that_dies_is_replaced(make):
    checker = make()
    with pytest.raises(GrammarTooComplex, match="memory"):
        checker.check("crash")
    assert checker.check("good") == (0.5, 4)


def test_a_helper_that_does_not_start_is_unavailable(make):
    with pytest.raises(Unavailable):
        make("dies").check("good")


def test_stop_ends_it(make):
    checker = make()
    checker.check("good")
    pid = checker.pid
    checker.stop()
    assert not alive(pid)
    assert checker.stop() is None


@pytest.mark.model
def test_the_real_helper_tells_good_from_wrong_and_survives_what_kills_it(caplog):
    settings = CheckerSettings(model_dir=str(DEMO_MODEL), width=2048, timeout_s=20, memory_bytes=256 << 20)
    checker = ProcessGrammarChecker(settings)

    def check(form):
        return checker.check(json.dumps({"type": "structural_tag", "format": form}))

    try:
        seconds, used = check({"type": "regex", "pattern": "[a-z]{3}"})
        assert seconds < 20
        assert used >= 0
        for wrong, why in (
            ({"type": "regex", "pattern": "(a"}, "parenthesis"),
            ({"type": "grammar", "grammar": "x ::= y"}, "root"),
            ({"type": "nope"}, "nope"),
            ({"type": "json_schema", "json_schema": {"type": 5}}, "not a JSON schema"),
        ):
            with pytest.raises(GrammarInvalid, match=why) as caught:
                check(wrong)
            assert "/" not in caught.value.message
        with pytest.raises(GrammarTooComplex):
            check({"type": "regex", "pattern": "(" * 40000 + "a" + ")" * 40000})  # overflows xgrammar's stack
        assert check({"type": "regex", "pattern": "[a-z]{3}"})
    finally:
        checker.stop()
    assert "ended with status" in caplog.text


def test_one_that_was_ended_while_it_waited_is_no_grammars_fault(make):
    checker = make()
    checker.check("good")
    os.kill(checker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, checker.pid, os.WEXITED | os.WNOWAIT)
    assert checker.check("good") == (0.5, 4)


def test_a_process_that_cannot_be_had_is_unavailable():
    with pytest.raises(Unavailable):
        ProcessGrammarChecker(SETTINGS, ["/no/such/program"]).check("good")

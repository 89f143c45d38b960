"""Long texts beside the step loop: exactly the ids of GenAI's tokenizer."""

from __future__ import annotations

from functools import partial

import openvino_genai as genai
import pytest

from lean_ovms.config import DEMO_MODEL
from lean_ovms.engine.genai import beside, model_info, text_encoder, vocabulary
from lean_ovms.errors import BadRequest

TURN = "<|im_start|>user\nIt's 2026, caf\u00e9 \u4e2d\u6587 {}.\r\n\n  def f(x):\n\treturn x * 10**3<|im_end|>\n"


@pytest.fixture(scope="module")
def ask():
    return partial(model_info.encode, genai.Tokenizer(str(DEMO_MODEL), **model_info.TOKENIZER))


@pytest.fixture(scope="module")
def encoder(ask):
    pieces = vocabulary.build(DEMO_MODEL, genai.Tokenizer(str(DEMO_MODEL), **model_info.TOKENIZER)).pieces
    return text_encoder.make(DEMO_MODEL, ask, pieces)


@pytest.fixture(scope="module")
def made(ask, encoder):
    found = beside.make(DEMO_MODEL, ask, encoder)
    assert found is not None
    return found


@pytest.mark.parametrize("text", ["", TURN.format("a") * 300, "\n" * 20_000, "\u4e2d\u6587" * 9000])
def test_the_ids_are_those_of_the_tokenizer(made, ask, text):
    assert made.encode(text, False).tolist() == ask(text, False)
    assert made.encode(text, True).tolist() == ask(text, True)
    assert made._request is not None  # it was not the tokenizer that answered


def test_a_lone_surrogate_is_refused(made):
    with pytest.raises(BadRequest, match="Unicode"):
        made.encode("x" * 20_000 + "\ud800", False)


def test_only_what_is_new_of_a_conversation_is_long(made, encoder, ask, monkeypatch):
    monkeypatch.setattr(beside, "LONG_CHARACTERS", 1000)
    first = "".join(TURN.format(f"{letter} " * 50) for letter in "abcdefgh")
    assert made.is_long(first)
    assert not made.is_long("short")
    made.learn(first, made.encode(first, False).tolist(), False)
    assert encoder.unknown(first + TURN.format("new")) < 200
    assert encoder(first, False) == ask(first, False)


def test_a_graph_with_other_ids_is_not_used(ask):
    found = beside.make(DEMO_MODEL, lambda text, special: [*ask(text, special), 5], None)
    assert found.encode("hello", False).tolist() == [*ask("hello", False), 5]
    assert found._request is None


def test_no_graph_no_encoder(tmp_path, ask):
    assert beside.make(tmp_path, ask, None) is None

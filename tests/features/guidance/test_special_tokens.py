"""Special tokens in grammars: constrained text contains none, but families can write their markup with them."""

import json
import random

import numpy as np
import pytest

from lean_ovms.config import DEMO_MODEL
from lean_ovms.engine.loading.vocabulary import read
from lean_ovms.features.guidance.child.library import Guidance
from lean_ovms.features.model_families.registry import registry
from lean_ovms.features.structured_output.child.vocabulary import markup
from lean_ovms.features.structured_output.constraint import build
from lean_ovms.grammar.call_syntax import GrammarContext
from lean_ovms.types import OutputConstraint

EOS = 2
DEMO = read(DEMO_MODEL)
MARKUP = [
    *("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>", "<tool_call>", "</tool_call>", "<think>"),
    *("</think>", '<|"|>', "<|tool_call>", "<tool_call|>", "[TOOL_CALLS]", "</parameter>", "[e~[", "<repo_name>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<minimax:tool_call>", "</minimax:tool_call>"),
]
PIECES = [*DEMO.pieces, *(text.encode() for text in MARKUP)]
SPECIAL = frozenset({0, 1, EOS, *range(len(DEMO.pieces), len(PIECES))})
WIDTH = len(PIECES) + 3
HIDDEN = sorted(SPECIAL - {EOS})
LETTERS = {"type": "string", "minLength": 12, "maxLength": 12}


def tool(schema):
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def tagged(how="required", family="hermes3", reasoning=None, schema=LETTERS):
    context = GrammarContext(
        form=registry().output_form(family, reasoning), prompt_tail="", tools=(tool(schema),), parallel=False
    )
    return build(OutputConstraint(tool_calls=how), context).tag


def content(form):
    context = GrammarContext(form=registry().output_form(None, None), prompt_tail="", tools=())
    return build(OutputConstraint(format=form), context).tag


def in_json(schema):
    return content({"type": "json_schema", "json_schema": schema})


@pytest.fixture(scope="module")
def library():
    return Guidance(PIECES, WIDTH, [EOS], special=SPECIAL)


def begin(library, tag):
    library.compile(tag)
    return library.matcher(tag, frozenset({EOS}))


def allowed(matcher):
    row = np.zeros(WIDTH, np.float32)
    matcher.apply(row)
    return np.flatnonzero(row == 0).tolist()


def biased(library, tag, seed, most=200):
    """Returns the tokens of a random text with every special token that is allowed, cut off at a limit."""
    dice, matcher, ids = random.Random(seed), begin(library, tag), []
    while len(ids) < most:
        choice = allowed(matcher)
        token = dice.choice([i for i in choice if i in HIDDEN] or choice)
        if matcher.consume(token):
            break
        ids.append(token)
    return ids


def takes(library, tag, *pieces):
    """Returns whether a text may be generated as these tokens: special ones as a whole, others as single characters."""
    matcher = begin(library, tag)
    for piece in pieces:
        ids = [PIECES.index(piece.encode())] if piece in MARKUP else [PIECES.index(c.encode()) for c in piece]
        for token in ids:
            if token not in allowed(matcher):
                return False
            matcher.consume(token)
    return EOS in allowed(matcher)


WITHOUT = {
    "regex": content({"type": "regex", "pattern": "[^x]{12}"}),
    "any regex": content({"type": "regex", "pattern": "(.|\n){3,9}"}),
    "letters of markup": content({"type": "regex", "pattern": "[a-z<>|_]{13}"}),
    "a regex of a special token": content({"type": "regex", "pattern": "<\\|im_start\\|>"}),
    "ebnf": content({"type": "grammar", "grammar": 'root ::= [^x]{12} "<|im_start|>"'}),
    "lark": content({"type": "grammar", "grammar": 'start: /[^x]{12}/ "<|im_start|>"'}),
    "length": in_json({"type": "object", "properties": {"a": LETTERS}, "required": ["a"]}),
    "pattern": in_json({"type": "string", "pattern": "^[a-z<>|_]{13}$"}),
    "names": in_json({"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 2}),
    "listed": in_json({"enum": ["<|im_start|>"]}),
    "arguments": tagged(family="llama3"),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_what_is_constrained_has_no_special_token(library, name):
    for seed in range(2):
        assert not set(biased(library, WITHOUT[name], seed, 40)) & SPECIAL


MARKED = {
    "hermes3": '<tool_call>§\n{"name": "f", "arguments": {"a": "abcdefghijkl"}}\n§</tool_call>',
    "gptoss": '<|channel|>§commentary to=functions.f §<|constrain|>§json§<|message|>§{"a":"abcdefghijkl"}',
    "gemma4": '<|tool_call>§call:f{a:§<|"|>§abcdefghijkl§<|"|>§}§<tool_call|>',
    "mistral": '[TOOL_CALLS]§[{"name": "f", "arguments": {"a": "abcdefghijkl"}}]',
    "qwen3coder": (
        "<tool_call>§\n<function=f>\n<parameter=a>\nabcdefghijkl\n§</parameter>§\n</function>\n§</tool_call>"
    ),
    "glm4_moe": ("<tool_call>§f\n§<arg_key>§a§</arg_key>§\n§<arg_value>§abcdefghijkl§</arg_value>§\n§</tool_call>"),
    "minimax_m2": (
        '<minimax:tool_call>§\n<invoke name="f">\n<parameter name="a">abcdefghijkl§</parameter>§\n</invoke>\n§'
        "</minimax:tool_call>"
    ),
}
"""A call of each family. Tags between two § may be special tokens."""
STYLED = {family: text.split("§") for family, text in MARKED.items()}


@pytest.mark.parametrize("schema", [LETTERS, {"type": "string"}], ids=["twelve", "any"])
@pytest.mark.parametrize("family", STYLED)
def test_calls_may_be_written_with_special_tokens_or_without_them(library, family, schema):
    tag = tagged(family=family, schema=schema)
    assert takes(library, tag, *STYLED[family])
    assert takes(library, tag, *"".join(STYLED[family]))


@pytest.mark.parametrize("family", [name for name in STYLED if name != "gemma4"])  # XGrammar only imposes its syntax
def test_arguments_have_no_special_token_but_the_end_of_their_value(library, family):
    """Each special token of a call is where the family writes it. (XGrammar only imposes gemma4's syntax.)"""
    tag = tagged(family=family)
    for seed in range(2):
        ids = biased(library, tag, seed, 300)
        made = [PIECES[i].decode() for i in ids if i in SPECIAL]
        assert made == [piece for piece in STYLED[family] if piece in MARKUP]


def test_free_text_before_a_call_is_as_free_as_without_a_grammar(library):
    tag = tagged("schema", family="gptoss")
    text = ("<|channel|>", "commentary", "<|message|>", "a", "<|end|>", "<|start|>", "assistant")
    assert takes(library, tag, *text, *STYLED["gptoss"])
    assert takes(library, tag, "<|channel|>", "final", "<|message|>", "a")


def test_reasoning_may_end_with_its_special_token(library):
    tag = tagged(family="hermes3", reasoning="qwen3")
    assert takes(library, tag, "<think>", "a ", "</think>", "\n\n", *STYLED["hermes3"])


@pytest.mark.slow
def test_a_plain_value_of_a_parameter_has_no_special_token():
    library = Guidance(PIECES, WIDTH, [EOS], special=SPECIAL)
    for family in ("qwen3coder", "glm4_moe", "gemma4"):
        tag = tagged(family=family, schema={"type": "string"})
        shared = set(markup(json.loads(tag)).literals)
        ids = biased(library, tag, 0)
        assert {PIECES[i].decode() for i in ids if i in SPECIAL} <= {t for t in MARKUP if any(t in s for s in shared)}

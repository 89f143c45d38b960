"""Grammars of the paged engine: structural tags, matched with the demo model's vocabulary."""

import json
import random
import time
from types import SimpleNamespace

import numpy as np
import pytest
from llguidance import LLParserLimits

from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.engine.loading.vocabulary import read
from lean_ovms.engine.paged.parts import NoGrammars
from lean_ovms.engine.paged.sequence import NoToken
from lean_ovms.errors import GrammarInvalid, GrammarTooComplex
from lean_ovms.features.guidance.child import library as guidance_module
from lean_ovms.features.guidance.child import process as guidance_process
from lean_ovms.features.guidance.child.library import PROCESS, Guidance
from lean_ovms.features.model_families.registry import registry
from lean_ovms.features.structured_output.child.checker import CheckerSettings, ProcessGrammarChecker
from lean_ovms.features.structured_output.child.library import GrammarLibraries, LibraryGrammars
from lean_ovms.features.structured_output.constraint import build
from lean_ovms.features.structured_output.limits import GrammarBounds
from lean_ovms.grammar.call_syntax import GrammarContext
from lean_ovms.types import OutputConstraint
from lean_ovms.types.engine import Vocabulary

EOS = 2
PIECES = read(DEMO_MODEL).pieces
WIDTH = len(PIECES) + 5


@pytest.fixture(scope="module")
def guidance():
    return Guidance(PIECES, WIDTH, [EOS, 0])


@pytest.fixture(scope="module")
def library(guidance):
    return guidance


def begin(library, form, stops=frozenset({EOS})):
    """Returns a matcher at the beginning of a grammar."""
    library.compile(form)
    return library.matcher(form, stops)


def grammar(text):
    return json.dumps({"type": "structural_tag", "format": {"type": "grammar", "grammar": text}})


def tag(**form):
    return json.dumps({"type": "structural_tag", "format": form})


def allowed(matcher):
    line = np.zeros(WIDTH, np.float32)
    matcher.apply(line)
    return set(np.flatnonzero(line == 0).tolist())


def tokens(text):
    """Returns a text in the shortest pieces: single bytes and characters come before whole words."""
    data, ids = text.encode(), []
    table = {piece: i for i, piece in enumerate(PIECES) if piece and i not in (EOS, 0)}
    while data:
        size = next(n for n in range(1, 30) if data[:n] in table)
        ids.append(table[data[:size]])
        data = data[size:]
    return ids


def fits(library, form, text):
    """Returns whether a text may be generated and end there, in the shortest pieces if there is a choice."""
    matcher, rest = begin(library, form), text.encode()
    while rest:
        options = [i for i in allowed(matcher) if i < len(PIECES) and PIECES[i] and rest.startswith(PIECES[i])]
        if not options:
            return False
        token = min(options, key=lambda i: len(PIECES[i]))
        matcher.consume(token)
        rest = rest[len(PIECES[token]) :]
    return EOS in allowed(matcher)


def written(library, form, seed, most=300):
    """Returns a random text of the grammar; None if it does not end by itself."""
    dice, matcher, ids = random.Random(seed), begin(library, form), []
    for _ in range(most):
        choice = sorted(allowed(matcher))
        token = EOS if EOS in choice and dice.random() < 0.3 else dice.choice(choice)
        if matcher.consume(token):
            return b"".join(PIECES[i] for i in ids).decode("utf-8", "replace")
        ids.append(token)
    return None


NO_GRAMMARS = [
    "",
    'other ::= "a"',
    "root ::= missing",
    'root ::= "a',
    'root ::= ("a"',
    'root ::= "a" )',
    "root ::= [z-a]",
    'root ::= "a"{3,1}',
    'root ::= (="a") "b"',
    'root ::= Macro("a")',
    'root ::= "a" $',
    "start: a",
    "start: (",
    'start: %json {"type": "nope"}',
    "root ::= " + "(" * 500 + '"a"' + ")" * 500,
    'root ::= other\nother ::=\nmore ::= "a"',
]
NO_TAGS = ["", "[]", "{}", '{"format": 1}', tag(type="x"), tag(type="_grammar"), tag(type=None)]


def test_what_is_no_grammar_is_refused(library):
    for source in NO_GRAMMARS:
        with pytest.raises((GrammarInvalid, GrammarTooComplex)):
            library.compile(grammar(source))
    for form in NO_TAGS:
        with pytest.raises(GrammarInvalid):
            library.compile(form)


def const(value):
    return {"type": "const_string", "value": value}


def regular(pattern):
    return {"type": "regex", "pattern": pattern}


NULL = {"type": "json_schema", "json_schema": {"type": "null"}}
ANY_TEXT = {"type": "any_text"}
NUMBERED = {"type": "tag", "begin": "<f>", "content": regular("[0-9]+"), "end": "</f>"}
DIGIT = {"type": "tag", "begin": "<", "content": regular("[0-9]"), "end": ">"}
CHAIN = "\n".join(f'r{i} ::= "a" r{i + 1}' for i in range(300))
MATCHES = [
    (grammar('root ::= "a" | [c] {0,2}'), ["a", "c", "cc", ""], ["b", "bx", "ccc"]),
    (tag(type="tag", begin="<a>", content=ANY_TEXT, end="\n</a>\n"),
     ["<a>x\n</a>\n", "<a>\n\n</a>\n", "<a>\n</a>.\n</a>\n"], ["<a>x", "<a>\n</a>"]),
    (grammar('root ::= "a" [b-d]{2} | "xyz"'), ["abc", "add", "xyz"], ["a", "ab", "abcd", "xy", "abe", ""]),
    (tag(**regular("true|[a-z]*")), ["true", "trap", "t", ""], ["True", "a1"]),
    (tag(**regular("[a-z]*x")), ["x", "ax", "xx", "xax"], ["", "xa"]),
    # The longest lexeme would include the x.
    (tag(type="sequence", elements=[regular("[a-z]*"), const("x")]), ["x", "ax", "xx", "xax"], ["", "xa"]),
    (tag(type="plus", content=const("ab")), ["ab", "abab"], ["", "aba"]),
    (tag(type="star", content=NULL), ["", "nullnull"], ["nul"]),
    (tag(type="optional", content=NULL), ["", "null"], ["nullnull"]),
    (tag(type="repeat", min=1, max=2, content=const("ab")), ["ab", "abab"], ["", "ababab"]),
    (tag(type="repeat", min=2, max=-1, content=const("a")), ["aa", "aaa"], ["a"]),
    (grammar('root ::= "(" root ")" | ""'), ["", "()", "((()))", "(" * 30 + ")" * 30], ["(", ")", "(()"]),
    (grammar('root ::= a\na ::= "a" b | "."\nb ::= "b" a | "!"'), [".", "a!", "ab.", "aba!"], ["ab!", "a.", "b"]),
    (grammar("root ::= " + "(" * 20 + '"a" [b]' + ')? "c"' * 20), ["abc" + "c" * 19, "c"], ["ab"]),
    (grammar(f'root ::= r0\n{CHAIN}\nr300 ::= "b"'), ["a" * 300 + "b"], ["a" * 299 + "b"]),
    (grammar('root ::= [^"\\\\]'), ["x", "é", "\n", "/"], ['"', "\\", "xx"]),
    (tag(**const('say "é"\n\u0001')), ['say "é"\n\u0001'], ["say"]),
    (tag(**regular("[a-z]+/\\d{2}")), ["abc/12"], ["abc/1", "ABC/12"]),
    (tag(**ANY_TEXT), ["", "anything\nat all"], []),
    (tag(**ANY_TEXT, excludes=["no"]), ["n o"], ["I know"]),
    (tag(type="tag", begin="<a>", content=ANY_TEXT, end="</a>"),
     ["<a></a>", "<a>x < y </</a>"], ["<a>", "<a></a>x", "<a></a></a>"]),
    (tag(type="sequence", elements=[const("1"), regular("a|b")]), ["1a", "1b"], ["1", "1c"]),
    (tag(type="or", elements=[const("no"), const("now")]), ["no", "now"], ["n", "nowno"]),
    (tag(type="triggered_tags", triggers=["<f"], tags=[NUMBERED]),
     ["hello", "", "a <f>12</f> b <f>3</f>", "<x> < f"], ["<f", "<f>x</f>", "<f>1</f><f"]),
    (tag(type="tags_with_separator", separator=",", at_least_one=True, tags=[DIGIT]),
     ["<1>", "<1>,<2>,<3>"], ["", "<1><2>", "<1>,"]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "good", "bad"), MATCHES, ids=range(len(MATCHES)))
def test_texts_that_fit_may_be_generated_and_others_not(library, form, good, bad):
    assert [text for text in good if not fits(library, form, text)] == []
    assert [text for text in bad if fits(library, form, text)] == []


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "more": {"anyOf": [{"type": "boolean"}, {"$ref": "#"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def context(tool_parser, reasoning_parser, *tools):
    form = registry().output_form(tool_parser, reasoning_parser)
    return GrammarContext(form=form, prompt_tail="", tools=tools)


def constraint(form):
    return build(OutputConstraint(format=form), context(None, None)).tag


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_generated_fits_the_schema(library, seed):
    import jsonschema

    text = written(library, constraint({"type": "json_schema", "json_schema": PERSON}), seed)
    if text is not None:
        strict = isinstance(library, Guidance)  # XGrammar allows control characters in strings
        jsonschema.validate(json.loads(text, strict=strict), PERSON)


@pytest.mark.parametrize(
    "schema", [{}, {"type": "object"}, {"type": ["object", "array"]}, {"minLength": 2, "minimum": 3, "minItems": 1}]
)
def test_any_value_of_whatever_type(library, schema):
    form = constraint({"type": "json_schema", "json_schema": schema})
    deep = ('[{"a":' * 3 + '[12,"bcd"]' + "}]" * 3) if schema != {"type": "object"} else '{"a":' * 15 + "1" + "}" * 15
    assert fits(library, form, deep)
    assert not fits(library, form, deep[:-1])


NOTICES = [
    ({"type": "array", "uniqueItems": True, "contains": {}}, ["contains, uniqueItems"]),
    ({"type": "string", "format": "poem"}, ["format poem"]),
    ({"oneOf": [{"type": "string"}, {"const": "a"}]}, ["oneOf (treated as anyOf)"]),
    ({"oneOf": [{"type": "string"}, {"const": 1}]}, []),
    ({"type": "integer", "multipleOf": 5}, []),
]


@pytest.mark.parametrize(("schema", "notices"), NOTICES)
def test_keywords_that_are_not_imposed_are_told(guidance, schema, notices):
    form = constraint({"type": "json_schema", "json_schema": schema})
    assert list(guidance.check(form, GrammarBounds()).notices) == notices


ARGUMENTS = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "size": {"type": "integer", "minimum": 2},
        "unit": {"enum": ["c", None, 1]},
        "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        "tree": {"$ref": "#/$defs/tree", "description": "of trees"},
        "any": {},
    },
    "required": ["text"],
    "$defs": {
        "tree": {"type": "object", "properties": {"sub": {"$ref": "#/$defs/tree"}}, "additionalProperties": False}
    },
}
NOTATIONS = [
    (
        "pythonic",
        ['text="a\\n"', 'text="", size=2, unit=None, list=[True, False], tree={"sub": {"sub": {}}}, any=[1, "a"]'],
        ["", "size=2", 'text="a", size=1', 'text="", unit="d"', 'text="", list=[]', "text='a'"],
        "[f({})]",
    ),
    (
        "gemma4",
        ['{text:<|"|>a "b" <|<|"|>}', '{text:<|"|><|"|>,size:2,unit:null,tree:{sub:{}},any:[1,<|"|>a<|"|>]}'],
        ["{}", '{text:<|"|>a}', '{text:<|"|><|"|>,size:1}', '{text:<|"|><|"|>,list:[true,true,true]}', '{text:"a"}'],
        "<|tool_call>call:f{}<tool_call|>",
    ),
    (
        "functiongemma",
        ["{text:<escape>a<escape>}", "{text:<escape>a<escape>,unit:1}"],
        ["{}", "{text:<escape>a}", "{text:<escape>a<escape>,unit:2}"],
        "<start_function_call>call:f{}<end_function_call>",
    ),
    (
        "minicpm5",
        ['<param name="text">a < b</param>', '<param name="text"></param><param name="list">[true]</param>'],
        ["", '<param name="size">2</param>', '<param name="text"></param><param name="size">1</param>'],
        '<function name="f">{}</function>',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("family", "good", "bad", "frame"), NOTATIONS, ids=[case[0] for case in NOTATIONS])
def test_arguments_in_the_notation_of_a_family(guidance, family, good, bad, frame):
    tool = {"type": "function", "function": {"name": "f", "parameters": ARGUMENTS}}
    called = build(OutputConstraint(tool_calls="required"), context(family, None, tool))
    assert called.notices == []
    around = frame.partition("{}")
    assert [text for text in good if not fits(guidance, called.tag, f"{around[0]}{text}{around[2]}")] == []
    assert [text for text in bad if fits(guidance, called.tag, f"{around[0]}{text}{around[2]}")] == []


UNDECLARED = [
    ("pythonic", "[f({})]", "a=1", "a=1, b=2"),
    ("gemma4", "<|tool_call>call:f{}<tool_call|>", "{a:1}", "{a:1,b:2}"),
    ("minicpm5", '<function name="f">{}</function>', '<param name="a">1</param>', '<param name="b">2</param>'),
    ("hermes3", '<tool_call>\n{{"name": "f", "arguments": {}}}\n</tool_call>', '{"a": 1}', '{"a": 1, "b": 2}'),
]


@pytest.mark.parametrize(("family", "frame", "bad", "good"), UNDECLARED, ids=[case[0] for case in UNDECLARED])
def test_a_property_that_is_only_required_is_required(guidance, family, frame, bad, good):
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    tag = build(OutputConstraint(tool_calls="required"), context(family, None, tool)).tag
    whole = bad + good if family == "minicpm5" else good
    assert fits(guidance, tag, frame.format(whole))
    assert not fits(guidance, tag, frame.format(bad))


def literal(form):
    """Returns the only text of a format; None if it has several, apart from a call's number."""
    kind = form["type"]
    if kind == "const_string":
        return form["value"]
    if kind == "regex" and form["pattern"] == "[0-9]{1,2}":
        return "0"
    parts = {"sequence": form.get("elements"), "tag": [form.get("content")]}.get(kind)
    texts = [literal(part) for part in parts] if parts else [None]
    return None if None in texts else f"{form.get('begin', '')}{''.join(texts)}{form.get('end', '')}"


def called_once(family, parameters):
    """Returns what `build` makes of one required call of a function with these parameters."""
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    place = GrammarContext(form=registry().output_form(family, None), prompt_tail="", tools=(tool,), parallel=False)
    return build(OutputConstraint(tool_calls="required"), place)


UNIT = {"type": "object", "properties": {"unit": {"type": "string", "enum": ["celsius"]}}, "required": ["unit"]}
WORDS = {
    family: text
    for family in registry().tool_names
    if (text := literal(json.loads(called_once(family, UNIT).tag)["format"])) is not None
}
"""A call by each family that writes an element for each argument, in the form in which it is enforced."""


@pytest.mark.parametrize("family", WORDS)
def test_an_object_of_any_members_may_have_any_arguments_in_elements(guidance, family):
    called = called_once(family, {"type": "object", "additionalProperties": True})
    assert called.notices == []
    text = WORDS[family].replace("celsius", 'not so\nlong, {"a": [1]}')
    assert fits(guidance, called.tag, text)
    assert not fits(guidance, called.tag, text.replace("f", "g", 1))


def test_these_are_the_families_with_elements():
    assert len(WORDS) == 17


def test_a_required_property_that_is_not_allowed_is_an_error(guidance):
    parameters = {"type": "object", "additionalProperties": False, "required": ["b"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    called = build(OutputConstraint(tool_calls="required"), context("gemma4", None, tool))
    with pytest.raises(GrammarInvalid, match="the required property 'b' is not allowed"):
        guidance.check(called.tag, GrammarBounds())


def test_calls_and_thoughts(library):
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    }
    asked = context("hermes3", "qwen3", tool)
    shaped = build(OutputConstraint(tool_calls="schema"), asked).tag
    call = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    assert fits(library, shaped, "Hello.")
    assert fits(library, shaped, f"<think>so < so</think>\n\nWell: {call}")
    assert not fits(library, shaped, call.replace("1", "true"))
    required = build(OutputConstraint(tool_calls="required"), asked).tag
    assert fits(library, required, call)
    assert fits(library, required, f"{call}\n{call}\n")
    assert fits(library, required, f"{call}\n{call}\nThe weather: <nice>")
    assert not fits(library, required, f"{call}\n<tool_call>\n{{}}")
    assert not fits(library, required, "Hello.")


def test_a_stop_of_the_request_may_end_where_the_grammar_may(library):
    stop = tokens("z")[0]
    matcher = begin(library, grammar('root ::= "a" "b"?'), frozenset({EOS, stop}))
    assert stop not in allowed(matcher)
    assert not matcher.consume(tokens("a")[0])
    assert {stop, EOS, 0} <= allowed(matcher)
    assert matcher.consume(stop)
    matcher = begin(library, grammar('root ::= "a"'))
    matcher.consume(tokens("a")[0])
    assert allowed(matcher) == {EOS, 0}, "where nothing else may follow"


def test_a_fork_goes_its_own_way(library):
    matcher = begin(library, grammar('root ::= "a" ("b" | "c") "d"'))
    matcher.consume(tokens("a")[0])
    other = matcher.fork()
    matcher.consume(tokens("b")[0])
    other.consume(tokens("c")[0])
    assert allowed(matcher) == allowed(other) == {tokens("d")[0]}


def test_the_text_without_a_choice_is_known_in_tokens(library):
    matcher = begin(library, grammar('root ::= "{" "\\"name\\": " ("a" | "b") "}"'))
    forced = matcher.forced()
    assert b"".join(PIECES[token] for token in forced) == b'{"name": '
    for token in forced:
        assert token in allowed(matcher)
        matcher.consume(token)
    assert matcher.forced() == []
    matcher.consume(tokens("a")[0])
    assert matcher.forced() == tokens("}")
    matcher.consume(tokens("}")[0])
    assert matcher.forced() == []


CALL = {
    "type": "function",
    "function": {
        "name": "get_the_weather_of_a_city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_a_call_at_once_takes_little_of_the_fuel(monkeypatch):
    monkeypatch.setattr(guidance_module, "LIMITS", LLParserLimits(step_lexer_fuel=15_000, verbose_errors=False))
    called = build(OutputConstraint(tool_calls="schema"), context("hermes3", None, CALL)).tag
    matcher = Guidance(PIECES, WIDTH, [EOS]).matcher(called, frozenset({EOS}))
    text = '<tool_call>\n{"name": "get_the_weather_of_a_city", "arguments": {"city": "Paris"}}\n</tool_call>'
    for token in tokens(text):
        assert token in allowed(matcher)
        assert not matcher.consume(token)
    assert EOS in allowed(matcher)


@pytest.mark.parametrize("cores", [1, 4])
def test_masks_of_several_texts_are_those_of_each_alone(guidance, monkeypatch, cores):
    monkeypatch.setattr(guidance_module, "_most_threads", lambda: cores)
    monkeypatch.setattr(guidance, "_executor", None)
    sources = ['root ::= "a" [b-f]', "root ::= [0-9]{3}", 'root ::= "x" | "y"', 'root ::= "a"?', 'root ::= "q"']
    made = [guidance.matcher(grammar(source), frozenset({EOS})) for source in sources]
    made[0].consume(tokens("a")[0])
    made[2].state.consume_token(tokens("z")[0])  # not allowed by the mask, so the state becomes invalid
    made[3].consume(EOS)
    guidance.prepare(made)
    assert (guidance._executor is not None) == (cores > 1)
    found = [allowed(one) for place, one in enumerate(made) if place != 2]
    assert found[0] == {tokens(c)[0] for c in "bcdef"}
    assert {tokens("0")[0], tokens("9")[0]} <= found[1]
    assert found[3] == {tokens("q")[0]}
    with pytest.raises(NoToken):
        allowed(made[2])


@pytest.mark.parametrize(
    "source",
    [
        'root ::= (((("a"){0,100}){0,100}){0,100}){0,100}',
        "root ::= " + "(" * 500 + '"a"' + ")" * 500,
        'root ::= (("a" | "b"){0,200} "c"?){0,200}',
    ],
)
def test_what_would_take_long_is_refused_at_once(guidance, source):
    with pytest.raises(GrammarTooComplex):
        guidance.check(grammar(source), GrammarBounds())


@pytest.mark.slow
@pytest.mark.parametrize(("least", "most"), [(0, 101), (99, 201), (3, None), (1000, 1001)])
def test_a_string_has_as_many_characters_as_its_schema_allows(guidance, least, most):
    library = guidance
    schema = {"type": "string", "minLength": least} | ({} if most is None else {"maxLength": most})
    form = build(OutputConstraint(format={"type": "json_schema", "json_schema": schema}), context(None, None)).tag
    for size in {max(0, least - 1), least, (most or 150), (most or 150) + 1}:
        text = "\\n" + "a" * (size - 1) if size else ""
        assert fits(library, form, f'"{text}"') == (least <= size and (most is None or size <= most)), size


def regex(text):
    return constraint({"type": "regex", "pattern": text})


HOSTILE = {
    "empty": regex("((.?){50}){50}"),
    "long": regex("(.?.?.?){300}"),
    "deep": regex("(((.?){12}){12}){12}"),
    "lengths": regex("([a-z]{1,100}){1,100}"),
    "exponential": regex(".*a.{200}b"),
    "products": regex("(.{0,60}x.{0,60}y.{0,60}){10}"),
    "forced": grammar('root ::= ((("a"){100}){100}){50}'),
    "literal": grammar('root ::= "' + "abc " * 900 + '"'),
    "ambiguous": grammar('root ::= s\ns ::= s s | "a" | "b" s | ""'),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.slow
def test_no_mask_of_a_hostile_grammar_takes_long(guidance, name):
    """0.1 s of CPU time is five times the limit, for busy machines. The second of these grammars once took seconds."""
    try:
        guidance.check(HOSTILE[name], GrammarBounds())
        matcher = guidance.matcher(HOSTILE[name], frozenset({EOS}))
    except GrammarTooComplex:
        return
    dice = random.Random(1)
    for _ in range(60):
        began = time.thread_time()
        matcher.prepare()
        # In seconds of CPU time, which another thread on the same core can double.
        assert time.thread_time() - began < 1
        try:
            choice = sorted(allowed(matcher) - {EOS})
        except NoToken:
            break
        if not choice or matcher.consume(dice.choice(choice)):
            break


class Reader:
    """Reads in this process, and counts the calls."""

    def __init__(self):
        self.read = 0

    def ask(self, tag, bounds):
        self.read += 1
        return guidance_process.read(tag, bounds)

    def stop(self):
        self.read = 0


def test_a_library_is_made_by_the_first_grammar_and_once(guidance):
    made = []

    def make():
        made.append(guidance)
        return guidance

    grammars, form = LibraryGrammars(make), tag(type="const_string", value="a")
    sequence = SimpleNamespace(request=SimpleNamespace(constraint=form), stops=frozenset([EOS]))
    grammars.clear()
    grammars.stop()
    assert made == []
    assert grammars.check(form, GrammarBounds()).bytes > 0
    assert allowed(grammars.matcher(sequence)) == allowed(begin(guidance, form))
    assert made == [guidance]
    matcher = grammars.matcher(sequence)
    grammars.prepare([matcher])
    assert not matcher.needs_mask


def test_a_server_has_the_library_unless_it_is_left_out(caplog):
    words = Vocabulary(pieces=PIECES, exact=True)
    usual, none = (GrammarLibraries(Config(without=names)).load() for names in ("", "guidance"))
    assert isinstance(usual(words, WIDTH, [EOS]), LibraryGrammars)
    assert isinstance(none(words, WIDTH, [EOS]), NoGrammars)
    assert "required tool calls are refused, since the server has no grammar library" in caplog.text


@pytest.mark.slow
def test_grammars_that_may_be_costly_are_read_in_a_process_and_others_here():
    reader = Reader()
    guidance = Guidance(PIECES, WIDTH, [EOS], reader)
    short, long = regex("[a-z]+"), constraint({"type": "regex", "pattern": "|".join(f"word{i}" for i in range(900))})
    assert guidance.check(short, GrammarBounds()).token_s >= 0
    assert reader.read == 0
    guidance.check(long, GrammarBounds(bytes=1 << 20))
    assert reader.read == 1
    assert fits(guidance, long, "word7")
    for schema in ({"multipleOf": 3}, {"allOf": [{}]}, {"patternProperties": {"^a": {}}}):
        reader.read = 0
        guidance.check(constraint({"type": "json_schema", "json_schema": schema}), GrammarBounds())
        assert reader.read == 1
    guidance.stop()
    assert reader.read == 0


@pytest.mark.slow
def test_the_process_that_reads_costly_grammars():
    settings = CheckerSettings(model_dir="", width=0, timeout_s=20, memory_bytes=64 << 20, probe_s=0)
    reader = ProcessGrammarChecker(settings, PROCESS)
    try:
        answer = reader.ask(grammar('root ::= "a" | "b"'), GrammarBounds())
        assert answer["text"].startswith("%llguidance")
        with pytest.raises(GrammarTooComplex, match="bytes"):
            reader.ask(grammar('root ::= "a" | "b"'), GrammarBounds(bytes=10))
        with pytest.raises(GrammarInvalid, match="there is no rule x"):
            reader.ask(grammar("root ::= x"), GrammarBounds())
        clash = {"oneOf": [{"type": "string"}, {"const": "a"}]}
        assert reader.ask(constraint({"type": "json_schema", "json_schema": clash}), GrammarBounds())["notices"] == []
        slow = [{"anyOf": [{"pattern": f"^a{i}b{j}.*$"} for j in range(8)]} for i in range(5)]
        reader.settings = CheckerSettings(model_dir="", width=0, timeout_s=0.3, memory_bytes=0, probe_s=0)
        with pytest.raises((GrammarTooComplex, GrammarInvalid)):
            reader.ask(
                constraint({"type": "json_schema", "json_schema": {"type": "string", "allOf": slow}}), GrammarBounds()
            )
    finally:
        reader.stop()

"""llama.cpp's grammars mean in Lark what they mean in llama.cpp."""

import llguidance
import pytest

from lean_ovms.errors import GrammarInvalid
from lean_ovms.features.guidance.child.gbnf import to_lark

SCHEMA = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""


def accepts(grammar, text):
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), to_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = [*text.encode()]
    return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "texts", "others"),
    [
        ('root ::= ""', [""], ["a"]),
        ("root ::= ", [""], ["a"]),
        ('root ::= "a" |', ["", "a"], ["b"]),
        ('root ::=\n  "a"\n  # no b\n\n  | "c"\n  | x\nx ::= "d"\n', ["a", "c", "d"], ["b", ""]),
        ('root ::= (("a")*)* "b"', ["b", "aab"], ["a"]),
        ('root ::= ("a"?)+ "b"', ["b", "aab"], ["ba"]),
        ('root ::= "x"{0} "y"{ 2 } "z"{1,} "a"{0,2}', ["yyz", "yyzzaa"], ["xyyz", "yz", "yyzaaa"]),
        ('root ::= .+ "x"', ["a\n\u2028éx"], ["ax\n"]),
        ("root ::= [^]", ["\n"], [""]),
        ("root ::= [^\\]\\\\^-] [-a] [a-]", ["x-a", "aa-"], ["]-a", "--a", "^-a"]),
        ("root ::= [\\x5Ea] [\\x2D-\\x2F] [a\\x2Dz]", ["^.-", "a/z"], ["b.-", "^.b"]),
        (r'root ::= "\x41\u00e9\U0001F600\n\t\r\\\"\[\]\x7f"', ['Aé😀\n\t\r\\"[]\x7f'], [""]),
        ('root ::= "a\nb" [\n]', ["a\nb\n"], ["ab\n"]),
        ('root ::= "日本" [一-龥] [😀-😎]', ["日本人😃"], ["日本a😃"]),
        ('1a ::= "a"\nroot ::= 1a start a-b a_b aB Item item\nstart ::= "s"\na-b ::= "1"\na_b ::= "2"\n'
         'aB ::= "3"\nItem ::= "4"\nitem ::= "5"', ["as12345"], ["as1235"]),
        ('# one\r\nroot ::= x # two\r\nx ::= ("a"\r\n | "b" # three\n) |\n  "c"\n\n', ["a", "b", "c"], ["d"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a"]),
        ('root ::= a\na ::= "x"\na ::= "y"', ["y"], ["x"]),
        ('root ::= word "ing" "."\nword ::= [a-z]+', ["sing.", "ining."], ["ing."]),
        (SCHEMA, ['{"a": [1, -2.5e+3, {"b\\n": null}], "\\u00e9": ""}'], ['{"a": 01}', '{"a"}', '{"\x01": 1}']),
    ],
)  # fmt: skip
def test_a_grammar_accepts_its_texts(grammar, texts, others):
    assert [text for text in texts if not accepts(grammar, text)] == []
    assert [text for text in others if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("", "there is no rule root"),
        ('a ::= "b"', "there is no rule root"),
        ("root ::= x y\nx ::= z", "there is no rule y"),
        ('root ::= "a"\nroot ::= "b" )', "line 2: the end of the rule is expected, not )"),
        ('root ::= ("a"', "line 1: ) is expected, not the end"),
        ('root ::= "a"**', "line 1: the end of the rule is expected, not *"),
        ('"a"', 'line 1: the name of a rule is expected, not "a"'),
        ("root [a]", "line 1: ::= is expected, not [a]"),
        ('\nroot ::= "a', 'line 2: "a is not expected'),
        ("root ::= 'a'", "line 1: 'a' is not expected"),
        ("root ::= <[7]>", "line 1: <[7]> is not expected"),
        ("root ::= [z-a]", "line 1: [z-a] has a range that ends before it begins"),
        ("root ::= []", "line 1: [] contains no character"),
        *((f'root ::= "a"{{{size}}}', f"line 1: {{{size}}} is not a number of repetitions") for size in
          ("3,1", "x", ",3", "1,2,3", "", "-1", "9999999999")),
        *((f'root ::= "{word}"', f"line 1: {word[:2]} is not an escape sequence") for word in ("\\q", "\\x4", "\\u12")),
        *((f'root ::= "{word}"', f"line 1: {word} is not a character") for word in ("\\ud800", "\\U00110000")),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(grammar, message):
    with pytest.raises(GrammarInvalid) as raised:
        to_lark(grammar)
    assert raised.value.message == f"The grammar cannot be read: {message}"


@pytest.mark.slow
def test_a_long_chain_of_rules_takes_linear_time():
    """A rule becomes a terminal once all that it refers to are ones, which is not looked for again after each."""
    count = 20_000
    chain = "\n".join(f"r{number} ::= r{number + 1}" for number in range(count))
    text = to_lark(f'root ::= r0\n{chain}\nr{count} ::= "a"')
    assert text.count("T") == 2 * (count + 2)

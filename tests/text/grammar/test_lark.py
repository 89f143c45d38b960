"""Grammars in Lark's notation become regular expressions: Python's own is the oracle of the texts that fit. They become
rules in EBNF, too: the oracle is every way to read a text.
"""

from __future__ import annotations

import re

import pytest

from lean_ovms.engine.paged import ebnf_parser
from lean_ovms.engine.paged.ebnf_parser import Chars, Either, Ref, Repeat, Series, Text
from lean_ovms.text.grammar import lark, regex
from lean_ovms.text.grammar.ebnf import Ebnf

PATCH = """
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""Of the kind that coding agents send for patches."""
GOOD_PATCH = "*** Begin Patch\n*** Update File: a.py\n@@ def f():\n-  x\n+  y\n*** Add File: b\n+hello\n*** End Patch\n"


def ebnf_of(definition: str) -> str:
    ebnf = Ebnf()
    return ebnf.text(lark.root(definition, ebnf))


class Reader:
    """Where texts of a grammar in EBNF end in a text. A rule that leads to itself is read until no end is new."""

    def __init__(self, grammar: str, text: str) -> None:
        self.rules = ebnf_parser.parse(grammar)
        self.text = text
        self.known: dict[tuple[str, int], set[int]] = {}

    def fits(self) -> bool:
        seen = -1
        while seen != (seen := sum(map(len, self.known.values()))):
            self.open: set[tuple[str, int]] = set()
            ends = self.rule("root", 0)
        return len(self.text) in ends

    def rule(self, name: str, at: int) -> set[int]:
        found = self.known.setdefault((name, at), set())
        if (name, at) not in self.open:
            self.open.add((name, at))
            found |= self.ends(self.rules[name], at)
        return set(found)

    def ends(self, node: ebnf_parser.Node, at: int) -> set[int]:
        if isinstance(node, Text):
            return {at + len(node.text)} if self.text.startswith(node.text, at) else set()
        if isinstance(node, Chars):
            code = ord(self.text[at]) if at < len(self.text) else None
            held = code is not None and any(low <= code <= high for low, high in node.ranges) != node.negated
            return {at + 1} if held else set()
        if isinstance(node, Ref):
            return self.rule(node.name, at)
        if isinstance(node, Either):
            return {end for option in node.options for end in self.ends(option, at)}
        if isinstance(node, Series):
            ends = {at}
            for part in node.parts:
                ends = {end for start in ends for end in self.ends(part, start)}
            return ends
        assert isinstance(node, Repeat)
        return self.repeated(node, at)

    def repeated(self, node: Repeat, at: int) -> set[int]:
        ends, found = {at}, {at} if not node.least else set()
        for count in range(1, (node.most or len(self.text) + node.least) + 1):
            ends = {end for start in ends for end in self.ends(node.body, start)}
            found |= ends if count >= node.least else set()
        return found


@pytest.mark.parametrize(
    ("definition", "fit", "others"),
    [
        ('start: "a" | "b"', ["a", "b"], ["", "ab", "c"]),
        ('start: "a"\n     | "b" "c"  // and so on\n', ["a", "bc"], ["b"]),
        ('start: (item ",")* item\n?item: WORD -> word\n%import common.WORD', ["a", "a,bc"], ["a,", ","]),
        ('start: "a"~2 "b"~1..3', ["aab", "aabbb"], ["ab", "aabbbb"]),
        ('start: ["-"] /[0-9]+/', ["-1", "23"], ["-"]),
        ('start: "select"i " " NAME\nNAME.3: "x".."z"', ["SELECT x", "Select z"], ["select a"]),
        (r'start: "\"" "\\" "\n" "." "\u00e9" /a\/b/', ['"\\\n.éa/b'], ['"\\\nxéa/b']),
        ("%import common (INT, LF)\n%import common.SIGNED_NUMBER -> N\nstart: INT LF N", ["1\n-2.5e3"], ["1 2"]),
        ('!start: [A] "]" # a comment\nA: "[".."]"', ["]", "[]", "\\]"], ["^]"]),
        (PATCH, [GOOD_PATCH, GOOD_PATCH[:-1]], [GOOD_PATCH[:-10], "hello"]),
    ],
)
def test_the_texts_that_fit(definition: str, fit: list[str], others: list[str]) -> None:
    pattern = lark.as_pattern(definition)
    assert [text for text in fit if not re.fullmatch(pattern, text)] == []
    assert [text for text in others if re.fullmatch(pattern, text)] == []
    assert regex.pattern(pattern, Ebnf()), "an engine can impose it"
    rules = ebnf_of(definition)
    assert [text for text in fit if not Reader(rules, text).fits()] == []
    assert [text for text in others if Reader(rules, text).fits()] == []


SUM = """
?start: sum
?sum: product | sum "+" product -> add
?product: atom | product "*" atom
?atom: NUMBER | "-" atom | "(" sum ")"
%import common.NUMBER
%import common.WS_INLINE
%ignore WS_INLINE
"""
JSON_RULE = """%llguidance {"no_forcing": false}

start: "n=" value
value[capture="v"]: %json {
  "type": "object",
  "properties": {"n": {"enum": [1, 2]}},
  "required": ["n"]
}
"""


@pytest.mark.parametrize(
    ("definition", "fit", "others"),
    [
        (SUM, ["1", "(1+-2)*3", " 1 + ( 2.5 * -3 ) "], ["1+", "(1", "1 2", "1 . 5", ""]),
        ('start: "(" start? ")"', ["()", "(())"], ["(", ")(", ""]),
        ('query: "select " NAME\nNAME: /[a-z]+/', ["select a"], ["select ", "a"]),
        ('start: a~2\na: ("x" | "y")+ ","\n%ignore " "\n%ignore "_"', ["x,y,", " x y_, x,", "xy,x ,"], ["x,", "z,z,"]),
        ('start: A\nA: "x" "y"\n%ignore " "', ["xy", " xy "], ["x y"]),
        (JSON_RULE, ['n={"n": 1}', 'n={"n":2}'], ['n={"n": 3}', "n={}"]),
        ('start: a\na[capture]: A\n\nA: "ab"\n     | "cd"\n\n', ["ab", "cd"], ["abcd"]),
    ],
)
def test_the_texts_that_fit_the_rules_in_ebnf(definition: str, fit: list[str], others: list[str]) -> None:
    rules = ebnf_of(definition)
    assert [text for text in fit if not Reader(rules, text).fits()] == []
    assert [text for text in others if Reader(rules, text).fits()] == []


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("start: b", "b is not defined"),
        ("%import common.WS", "start is not defined"),
        ('start: "a"~9999', "a count beyond 256"),
        ('start: "b".."a"', "a range that ends before"),
        ("start: /(?=a)a/", "look-around"),
        ("start: a\na[capture, max_tokens=10]: /.*/", "a rule's attribute max_tokens"),
        ("start: %json {", "no JSON at '{'"),
        ("start: a0\n" + "\n".join(f"a{n}: a{n + 1}" for n in range(60)) + '\na60: "x"', "deep"),
    ],
)
def test_what_is_refused_in_ebnf(definition: str, reason: str) -> None:
    with pytest.raises(regex.NotSupported, match=re.escape(reason)):
        ebnf_of(definition)


@pytest.mark.parametrize(
    ("grammar", "found"), [('start: "a"', True), ('root ::= "a:"', False), ("x", False), ("", False)]
)
def test_which_notation_it_is(grammar: str, found: bool) -> None:
    assert lark.is_lark(grammar) is found


@pytest.mark.parametrize("name", lark.COMMON)
def test_the_common_terminals_can_be_imposed(name: str) -> None:
    assert regex.pattern(lark.as_pattern(f"start: {name}\n%import common.{name}"), Ebnf())


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ('start: "(" start? ")"', "start contains itself"),
        ('a: "x"', "start is not defined"),
        ("start: b", "b is not defined"),
        ('start: "a"\n%ignore " "', "%ignore"),
        ('start: "a"\n%import python.NAME', "%import python"),
        ("start: X\n%import common.NOTHING", "common.NOTHING"),
        ("start: /a/i", "flags"),
        ('start: list{"a"}\nlist{x}: x', "'list' begins no rule"),
        ('start: list{"a"}\nlist: "x"', "templates"),
        ('start: ("a"', "missing"),
        ('start: "a" ) ', "unexpected"),
        ('start: "a".."bc"', "single"),
        ('start: "a"..', "single"),
        ('start: "a" ~ x', "number"),
        ('start: "a', "unexpected"),
        ("start: " + "(" * 40 + '"a"' + ")" * 40, "deep"),
        ("start: a0\n" + "\n".join(f"a{n}: a{n + 1} a{n + 1}" for n in range(25)) + '\na25: "x"', "characters"),
        ("start: a0\n" + "\n".join(f"a{n}: a{n + 1}" for n in range(60)) + '\na60: "x"', "deep"),
    ],
)
def test_what_is_refused(definition: str, reason: str) -> None:
    with pytest.raises(regex.NotSupported, match=re.escape(reason)):
        lark.as_pattern(definition)

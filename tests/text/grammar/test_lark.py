"""Grammars in Lark's notation become regular expressions: Python's own is the oracle of the texts that fit."""

from __future__ import annotations

import re

import pytest

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

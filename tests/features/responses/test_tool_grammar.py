"""Grammars of custom tools become regular expressions. Python's `re` decides which texts match."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from lean_ovms.errors import GrammarInvalid
from lean_ovms.features.responses.tool_grammar import COMMON, ToolGrammars, pattern

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
"""A grammar like those that coding agents send for patches."""
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
    found = pattern("lark", definition)
    assert [text for text in fit if not re.fullmatch(found, text)] == []
    assert [text for text in others if re.fullmatch(found, text)] == []


def test_the_common_terminals_are_regular_expressions() -> None:
    assert all(re.compile(pattern("lark", f"start: {name}\n%import common.{name}")) for name in COMMON)


REFUSED: list[tuple[str, str]] = [
    ('start: "(" start? ")"', "start is recursive"),
    ('a: "x"', "no rule start"),
    ("start: b", "no rule b"),
    ('start: "a"\n%ignore " "', "%ignore"),
    ('start: "a"\n%import python.NAME', "%import python"),
    ("start: X\n%import common.NOTHING", "common.NOTHING"),
    ("start: /a/i", "flags"),
    ('start: list{"a"}\nlist: "x"', "cannot be parsed"),
    ('start: ("a"', "not closed"),
    ('start: "a" ) ', "not closed"),
    ('start: "a".."bc"', "single"),
    ('start: "b".."a"', "not a regular expression"),
    ('start: "a"..', "single"),
    ('start: "a" ~ x', "cannot be parsed"),
    ('start: "a', "cannot be parsed"),
    ("start: /(/", "not a regular expression"),
    ("start", "not a rule"),
    ("start: a0\n" + "\n".join(f"a{n}: a{n + 1} a{n + 1}" for n in range(25)) + '\na25: "x"', "too long"),
    ('start: "a"' + "?" * 9000, "too long"),
    ("start: " + "|".join("a" * 2000) + '\na: "' + "x" * 9000 + '"', "too long"),
    ("start: " + "|".join("a" * 2000) + "\na: " + '"x" ' * 900, "too long"),
    ('start: "a"' + "|" * 30_000, "too long"),
    (r'start: "\ud83d"', "surrogate"),
    ("start: a0\n" + "\n".join(f"a{n}: a{n + 1}" for n in range(3000)) + '\na3000: "x"', "deep"),
    ("start: " + "(" * 3000 + '"a"' + ")" * 3000, "deep"),
]
OTHERS: list[tuple[Any, Any, str]] = [
    ("ebnf", "x", "syntax"),
    ("regex", 5, "definition"),
    ("regex", "(", "regular"),
    ("regex", "x" * 20_001, "too long"),
]


SECONDS = 5.0
"""CPU time for all of these, ten times of what is needed. Compiling the last regular expression would take 30 s."""


def test_what_is_no_regular_expression_is_refused() -> None:
    start = time.process_time()
    for syntax, definition, reason in (*(("lark", *one) for one in REFUSED), *OTHERS):
        with pytest.raises(GrammarInvalid, match=re.escape(reason)):
            pattern(syntax, definition)
    pattern("regex", "[a-\uffff]" * 3000)
    assert time.process_time() - start < SECONDS


def test_grammars_are_limited_together() -> None:
    grammars = ToolGrammars()
    for _ in range(5):
        grammars.pattern("regex", "x" * 19_000)
    with pytest.raises(GrammarInvalid, match="all tools"):
        grammars.pattern("lark", 'start: "x" //' + "x" * 5000)

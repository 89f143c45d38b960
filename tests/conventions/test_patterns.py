"""Patterns that read what clients send, or make a model write, take linear time."""

import re
import time

import pytest

from lean_ovms.api import queries
from lean_ovms.features.model_families import elements, kimi_k3
from lean_ovms.features.responses import tool_grammar
from lean_ovms.features.voice import model as voice
from lean_ovms.text.template import sandbox
from lean_ovms.transports.http11 import request_parser

LENGTH = 40_000
MOST_S = 1.0
"""Quadratic time is 4 to 20 seconds here, and linear time some milliseconds."""


@pytest.mark.parametrize(
    ("pattern", "method", "begin", "repeated", "end"),
    [
        pytest.param(request_parser._CHUNK_SIZE, "fullmatch", b"5;", b" ", b"\0\r\n", id="extension of a chunk"),
        pytest.param(request_parser._CHUNK_SIZE, "fullmatch", b"5", b" ", b"\0\r\n", id="blanks after a chunk's size"),
        pytest.param(request_parser._TRAILERS, "fullmatch", b"a:", b"b:", b"\0\r\n\r\n", id="trailer"),
        pytest.param(request_parser._SIMPLE_HEAD, "match", "GET / HTTP/1.1\r\na:", "b:", "\0\r\n\r\n", id="head"),
        pytest.param(queries._NUMBER, "fullmatch", "", "0", "x", id="number in a query"),
        pytest.param(tool_grammar._TOKEN, "match", "\n", " ", "|", id="blanks in a grammar"),
        pytest.param(elements._INTEGER, "fullmatch", "-", "0", "x", id="integer in an element"),
        pytest.param(kimi_k3._ATTRIBUTE, "findall", "", "a", " ", id="attribute of a call"),
        pytest.param(voice.SENTENCE, "findall", "", "!", "x", id="end of a sentence"),
        pytest.param(sandbox._WIDE, "search", "", "{", " ", id="braces in a format"),
        pytest.param(voice.CLAUSE, "findall", "", ",", "x", id="end of a clause"),
    ],
)
def test_linear_time(pattern: re.Pattern, method: str, begin, repeated, end):
    text = begin + repeated * LENGTH + end
    before = time.thread_time()
    getattr(pattern, method)(text)
    assert time.thread_time() - before < MOST_S

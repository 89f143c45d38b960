"""Halves of surrogate pairs become U+FFFD, and nothing else changes, wherever pieces end."""

from __future__ import annotations

import json
import random

import orjson
import pytest

from lean_ovms.api.fields import parsed_body
from lean_ovms.util import lone_surrogates
from lean_ovms.util.chunked_json import PIECE_BYTES

PIECES = [
    *(r"\ud83d", r"\ude00", r"\uD83D\uDE00", r"\u0041", r"\ufffd", r"\ud7ff", r"\ue000"),
    *("a", "é", r"\\", r"\\ud83d", r"\n", r"\""),
]


@pytest.mark.parametrize("size", [13, 14, 20, 1 << 18])
def test_each_half_becomes_a_replacement_character(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(lone_surrogates, "PIECE_BYTES", size)
    dice = random.Random(size)
    for _ in range(300):
        text = '"' + "".join(dice.choices(PIECES, k=dice.randrange(30))) + '"'
        wanted = "".join("\ufffd" if "\ud800" <= mark <= "\udfff" else mark for mark in json.loads(text))
        assert orjson.loads(lone_surrogates.replaced(text.encode())) == wanted, text


def test_what_is_no_json_stays_as_it_is() -> None:
    for data in (b"", b"{", rb'"\ud8"', rb'"\ud8', b"\\", rb'"\u"', rb'"a\x"'):
        assert lone_surrogates.replaced(data) == data
    assert lone_surrogates.replaced(rb"\ud800" * (lone_surrogates.MOST + 1)).count(rb"\ud800") == 1


@pytest.mark.parametrize("filling", [0, PIECE_BYTES + 1])
@pytest.mark.parametrize("half", [r"\ud83d", r"\ude00", r"\ud83dx", r"\ud83d\ud83d\ude00"])
def test_bodies_of_any_size_have_them(filling: int, half: str) -> None:
    body = parsed_body(f'{{"a": "{"x" * filling}{half}", "b": ["{half}"]}}'.encode())
    assert body["b"] == [body["a"][filling:]]
    assert "\ufffd" in body["b"][0]
    with pytest.raises(ValueError, match=r"near byte|column"):
        parsed_body(f'{{"a": "{"x" * filling}{half}", "b": ["{half}]}}'.encode())

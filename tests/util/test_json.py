"""JSON in pieces equals orjson's JSON, halves of surrogate pairs become U+FFFD, and files are read strictly."""

from __future__ import annotations

import json
import random
import sys
import traceback
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from lean_ovms.api.fields import parsed_body
from lean_ovms.repository import model_config
from lean_ovms.util import chunked_json, files, lone_surrogates
from lean_ovms.util.chunked_json import BATCH, PIECE_BYTES, TextTooLong, TooDeep, dumps, free, loads, serialized

TEXTS = ("", "plain", 'q"\\u\n😀é', "a, [b] {c}: \\", "x" * 70, 'é"' * 40, "😀" * 30, "\\" * 41)


def value(rng: random.Random, depth: int = 0) -> Any:
    draw = rng.random()
    if depth > 4 or draw < 0.5:
        return rng.choice((1, -2.5e3, True, None, *TEXTS))
    if draw < 0.75:
        return [value(rng, depth + 1) for _ in range(rng.randrange(6))]
    return {rng.choice(("k", 'k"{,', "kk")) + str(i): value(rng, depth + 1) for i in range(rng.randrange(6))}


def damaged(rng: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    place = rng.randrange(len(found))
    draw = rng.random()
    if draw < 0.4:
        found[place] = rng.choice(b'",[]{}:\\ 1x\x01\xff')
    elif draw < 0.7:
        del found[place : place + rng.randrange(1, 4)]
    else:
        found[place:place] = bytes([rng.choice(b'",[]{}:\\ 1')])
    return bytes(found)


def outcome(read: Any, data: bytes) -> str:
    try:
        return json.dumps(read(data))  # also compares the order of names
    except ValueError:
        return "invalid"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_json, "PIECE_BYTES", 64)
    monkeypatch.setattr(chunked_json, "SLICE_BYTES", 40)
    monkeypatch.setattr(chunked_json, "ESCAPED_SLICE_BYTES", 20)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_every_document_is_read_and_written_as_orjson_does(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        whole = value(rng)
        data = json.dumps(whole, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 1))).encode()
        for text in (data, damaged(rng, data)):
            assert outcome(loads, text) == outcome(orjson.loads, text), text
        assert dumps(whole) == orjson.dumps(whole)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    "text",
    [
        '{"a":1"%s"}',
        '[,"%s"]',
        '["%s",]',
        '["%s" "b"]',
        '{"%s"}',
        '{"a":"%s":1}',
        '["%s"',
        '"%s"]',
        '["%s"}',
        '["%s"][',
    ],
)
def test_what_stands_around_a_long_text_must_be_json(text: str) -> None:
    with pytest.raises(ValueError, match="near byte"):
        loads((text % ("x" * 200)).encode())


def test_no_call_gets_more_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(function: Any) -> Any:
        def call(data: Any, **options: Any) -> Any:
            result = function(data, **options)
            sizes.append(len(data) if isinstance(data, bytes) else len(result))
            return result

        return call

    watched = SimpleNamespace(
        loads=counted(orjson.loads), dumps=counted(orjson.dumps), JSONDecodeError=orjson.JSONDecodeError
    )
    monkeypatch.setattr(chunked_json, "orjson", watched)
    whole = {
        "text": "all work and no play " * 100_000,
        "quotes": '"' * 100_000,
        "objects": [{}] * 50_000,
        "deep": [[{"a": [{"b": ["x" * 300] * 2000}]}]],
    }
    data = orjson.dumps(whole)
    assert loads(data) == whole
    assert len(sizes) > 20
    assert max(sizes) <= chunked_json.PIECE_BYTES + chunked_json.FLAT_BYTES
    sizes.clear()
    assert dumps(whole) == data
    assert len(sizes) > 20
    assert max(sizes) <= 8 * chunked_json.SLICE_BYTES


@pytest.mark.parametrize("members", [0, 1, 3, 3000])
def test_a_list_that_was_written_as_it_grew_is_a_list(members: int) -> None:
    plain = [{"token": "é" * (n % 7), "n": [n]} for n in range(members)]
    written = chunked_json.Written()
    for start in range(0, members, 5):
        written.extend(orjson.dumps(plain[start : start + 5]))
    written.extend(b"[]")
    for around in (lambda one: one, lambda one: {"a": [one, "x" * 100_000, one], "b": one}, lambda one: [one] * 2000):
        if members < 3000 or around(1) != [1] * 2000:
            wanted = orjson.dumps(around(plain))
            assert dumps(around(written)) == wanted
            assert b"".join(chunked_json.pieces(around(written))) == wanted
    with pytest.raises(TypeError):
        dumps([object()])


def test_a_text_has_a_limit_and_data_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_json, "MAX_TEXT_CHARS", 900_000)
    monkeypatch.setattr(chunked_json, "MAX_WIDE_TEXT_CHARS", 300_000)
    for fits in ("a b" * 250_000, "data:image/png;base64," + "QUJD" * 400_000, "QUJD" * 400_000, "é " * 140_000):
        assert loads(orjson.dumps([fits])) == [fits]
    for text in ("a b" * 310_000, "é " + "a " * 200_000, "data:image/png;base64," + "QUJ-! " * 400_000):
        with pytest.raises(TextTooLong, match="characters near byte 2"):
            loads(orjson.dumps([text]))


def test_data_with_escapes_is_read_as_text() -> None:
    for header in (r"data:a\"b,", r"data:a\/b;base64,", r"data:\u0041,"):
        document = b'["%b%b"]' % (header.encode(), b"QUJD" * 50_000)
        assert loads(document) == orjson.loads(document)


def test_levels_names_and_gaps_have_limits() -> None:
    filler = b'"' + b"x" * 70_000 + b'"'
    assert loads(b"\xef\xbb\xbf  [%b]" % filler) == ["x" * 70_000]
    assert loads(b"[" * 120 + filler + b"]" * 120)
    with pytest.raises(TooDeep):
        loads(b"[" * 121 + filler + b"]" * 121)
    for refused in (b"{%b:1}" % filler, b"[%b,%b1]" % (filler, b" " * 70_000), b"[%b,%b]" % (filler, b"1" * 70_000)):
        with pytest.raises(ValueError, match="near byte"):
            loads(refused)


def test_a_name_longer_than_a_piece_is_refused_by_name() -> None:
    body = b'{"a": 1, "%b" : 2}' % (b"x" * 70_000)
    with pytest.raises(ValueError, match="a name is too long: near byte 9"):
        chunked_json.loads(body)


def test_a_long_text_grows_in_place() -> None:
    """If it were joined from slices, it would be copied in one call, and take twice its memory."""
    data = orjson.dumps(["QUJD" * 2_000_000])
    assert len(loads(data)[0]) == 8_000_000  # the interpreter appends in place once the loop is optimized
    tracemalloc.start()
    try:
        [text] = loads(data)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < len(text) * 1.3  # orjson's own memory for a slice is 1 MB


def test_a_large_value_is_freed_in_pieces() -> None:
    whole: Any = {
        "list": [[number] for number in range(5000)],
        "object": {str(n): [n] for n in range(5000)},
        "text": "",
    }
    inner, members = whole["list"], whole["object"]
    sizes: list[int] = []

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is free.__code__:
            sizes.append(len(inner) + len(members))
            return trace
        return None

    sys.settrace(trace)
    try:
        free(whole)
    finally:
        sys.settrace(None)
    assert whole == {}
    assert inner == []
    assert members == {}
    assert max(before - after for before, after in pairwise(sizes)) == chunked_json.FREED_MEMBERS


def test_what_was_read_of_a_broken_document_is_freed() -> None:
    """The error's traceback holds the reader, and so does whoever holds the error."""
    data = orjson.dumps({"prompt": ["x" * 100] * 5000})[:-1]
    with pytest.raises(ValueError, match="the data ends early") as caught:
        loads(data)
    readers = [
        frame.f_locals["reader"]
        for frame, _ in traceback.walk_tb(caught.value.__traceback__)
        if "reader" in frame.f_locals
    ]
    assert [container.value for reader in readers for container in reader._stack] == [{}]


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


BROKEN = [b"", b"{", b"\xff", b"[" * 100_000]


@pytest.mark.parametrize("data", BROKEN, ids=["empty", "cut", "not UTF-8", "too deep"])
def test_a_file_that_is_not_json_is_a_value_error_or_nothing(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(ValueError):  # noqa: PT011 - its text is that of the json module
        files.read(path)
    assert files.read_or_none(path) is None
    assert model_config.read(tmp_path) == {}


def test_a_missing_file_is_an_os_error_or_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "none")
    assert files.read_object(tmp_path / "none") == {}


@pytest.mark.parametrize(("text", "value"), [('{"a": 1}', {"a": 1}), ("[1]", {}), ('\ufeff{"a": 2}', {"a": 2})])
def test_only_an_object_counts_as_one(tmp_path: Path, text: str, value: object) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, "utf-8")
    assert files.read_object(path) == value


@pytest.mark.parametrize("count", [0, 1, BATCH, 2 * BATCH + 1])
def test_entries_are_serialized_in_batches_as_a_whole_list_would_be(count: int) -> None:
    def entries() -> Iterator[dict[str, Any]]:
        return ({"token": f"é{number}", "top_logprobs": [{"logprob": -0.5}]} for number in range(count))

    found = serialized(entries())
    assert b"".join(found.pieces()) == orjson.dumps([*entries()])
    assert dumps({"content": found}) == orjson.dumps({"content": [*entries()]})

"""The places of tokens in their text, with the tokens as several kinds of tokenizers cut it."""

from __future__ import annotations

import pytest

from lean_ovms.features.vllm_extras.api.token_places import placed
from tests.api.conftest import MakePooling, ask


@pytest.mark.parametrize(
    ("text", "pieces", "places"),
    [
        ("Hello world!", [b"hello", b" world", b"!"], [(0, 5), (6, 11), (11, 12)]),
        ("  Caf\u00e9 x", [b"cafe", b" x"], [(2, 7), (8, 9)]),
        ("\u00e9a", [b"\xc3", b"\xa9", b"a"], [None, None, (2, 3)]),
        ("a\nb", [b"a", b"\n", b"b"], [(0, 1), (1, 2), (2, 3)]),
        ("a  b", [b"a", b" ", b" b"], [(0, 1), (1, 2), (3, 4)]),
        ("ab", [b" ", b"a", b"b"], [None, (0, 1), (1, 2)]),
        ("one two three", [b"one", b"2", b" three"], [(0, 3), None, None]),
        ("", [], []),
    ],
)
def test_tokens_have_the_bytes_of_the_text_that_they_are(
    text: str, pieces: list[bytes], places: list[tuple[int, int] | None]
) -> None:
    found = [*placed(text, enumerate(pieces), {99})]
    assert [None if one["start"] is None else (one["start"], one["stop"]) for one in found] == places
    for one, piece in zip(found, pieces, strict=True):
        own = text.encode()[one["start"] : one["stop"]] if one["start"] is not None else piece
        assert one["text"] == own.decode("utf-8", "replace")


def test_special_tokens_have_no_place() -> None:
    begin, word = placed("a", [(7, b" <s>"), (1, b"a")], {7})
    assert begin == {"id": 7, "text": "<s>", "special": True, "start": None, "stop": None}
    assert word == {"id": 1, "text": "a", "special": False, "start": 0, "stop": 1}


async def test_inputs_are_tokenized_in_the_form_of_text_embeddings_inference(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    [tokens] = await ask(app, "/tokenize", inputs="ab")
    assert [(one["special"], one["start"]) for one in tokens] == [(True, None), (False, 0), (False, 1), (True, None)]
    plain = await ask(app, "/tokenize", inputs=["ab", "c"], add_special_tokens=False)
    assert [[one["id"] for one in text] for text in plain] == [[*b"ab"], [*b"c"]]

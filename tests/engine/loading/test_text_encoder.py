"""Texts become exactly the ids of the exported tokenizer, with tokenizer.json, with cached segments, or with itself."""

from __future__ import annotations

import json
import random
import re
import shutil
from functools import partial
from pathlib import Path

import openvino_genai as genai
import pytest

from lean_ovms.config import DEMO_MODEL
from lean_ovms.engine.loading import text_encoder, vocabulary
from lean_ovms.engine.loading.graph_tokenizer import GraphTokenizer
from lean_ovms.engine.loading.settings import TOKENIZER_PROPERTIES
from lean_ovms.engine.loading.text_encoder import Encode, JsonTokenizer, TextEncoder, exported_ids
from lean_ovms.errors import BadRequest
from lean_ovms.features.pooling.child.tokenizer import PoolingTokenizer
from lean_ovms.features.pooling.model import DEMO as DEMO_EMBED

TURN = "<|im_start|>user\nIt's 2026, and {} isn't here.\r\n\n  def f(x):\n\treturn x * 10**3  # why?<|im_end|>\n"
ODD = ["", " ", "<|im_end|>", "\n<|im_end|>", "x" * 1000, "\x07", "<|im_end", "a\x00b", "e\u0301", "日本 and so on"]

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def tokenizer() -> genai.Tokenizer:
    return genai.Tokenizer(str(DEMO_MODEL), **TOKENIZER_PROPERTIES)


@pytest.fixture(scope="module")
def ask(tokenizer: genai.Tokenizer) -> Encode:
    return partial(exported_ids, tokenizer)


@pytest.fixture(scope="module")
def pieces(tokenizer: genai.Tokenizer) -> list[bytes]:
    return vocabulary.build(DEMO_MODEL, tokenizer).pieces


@pytest.fixture
def encode(ask: Encode, pieces: list[bytes]) -> TextEncoder:
    made = TextEncoder(DEMO_MODEL, ask, pieces, JsonTokenizer.read(DEMO_MODEL))
    assert made._json is not None
    return made


@pytest.fixture(scope="module")
def without_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old_export")
    for file in DEMO_MODEL.glob("openvino_*tokenizer.*"):
        shutil.copy(file, folder)
    return folder


def test_random_texts_have_the_tokenizers_ids(ask: Encode, encode: TextEncoder, pieces: list[bytes]) -> None:
    dice = random.Random(7)
    words = [piece.decode("utf-8", "ignore") for piece in pieces]
    for number in range(60):
        parts = dice.choices(words, k=8) + [chr(dice.randrange(1, 128)) for _ in range(12)]
        dice.shuffle(parts)
        text = "".join(parts)
        assert encode(text, number % 2 == 0) == ask(text, number % 2 == 0), text


@pytest.mark.parametrize("text", ODD)
def test_short_and_odd_texts(ask: Encode, encode: TextEncoder, text: str) -> None:
    assert encode(text, False) == ask(text, False)
    assert encode.encode(text, True).tolist() == ask(text, True)


def test_a_text_longer_than_the_exported_tokenizer_takes_is_not_cut(ask: Encode, encode: TextEncoder) -> None:
    once = ask("a b ", False)
    assert encode("a b " * 100_000, False) == once * 100_000


def test_of_a_conversation_only_the_new_segment_is_tokenized(ask: Encode, encode: TextEncoder) -> None:
    first = "".join(TURN.format(name) for name in ("Zoë", "nobody", "日本"))
    assert encode(first, False) == ask(first, False)
    tokenized: list[str] = []
    inner = encode._json.encode
    encode._json.encode = lambda text: tokenized.append(text) or inner(text)
    whole = first + TURN.format("somebody new")
    assert encode(whole, False) == ask(whole, False)
    assert [text for text in tokenized if len(text) > 1] == [whole.split("<|im_start|>")[-1].split("<|im_end|>")[0]]


def test_what_is_new_decides_whether_a_text_is_long(
    ask: Encode, encode: TextEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_encoder, "LONG_CHARACTERS", 1000)
    first = "".join(TURN.format(f"{letter} " * 50) for letter in "abcdefgh")
    assert encode.is_long(first)
    assert not encode.is_long("short")
    encode.learn(first, encode.encode(first, True).tolist(), True)
    assert not encode.is_long(first + TURN.format("new"))
    assert encode(first, False) == ask(first, False)


def test_text_that_is_not_unicode_is_refused(encode: TextEncoder) -> None:
    with pytest.raises(BadRequest, match="Unicode"):
        encode("\ud800", False)
    with pytest.raises(BadRequest, match="Unicode"):
        encode.encode("x" * 20_000 + "\ud800", False)


def test_what_is_remembered_is_bounded(ask: Encode, encode: TextEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_encoder, "MAX_REMEMBERED", 400)
    for number in range(40):
        text = f"{number} a text that is remembered for a while"
        assert encode(text, False) == ask(text, False)
        assert sum(map(len, encode._known)) <= 400


def test_other_ids_than_the_exported_tokenizers_are_not_used(ask: Encode, pieces: list[bytes]) -> None:
    def other(text: str, add_special_tokens: bool) -> list[int]:
        return ask(re.sub(" +", " ", text), add_special_tokens)

    made = TextEncoder(DEMO_MODEL, other, pieces, JsonTokenizer.read(DEMO_MODEL))
    assert made._json is None
    assert made("a  b", False) == other("a  b", False)
    assert made.encode("a  b", False).tolist() == other("a  b", False)  # the graph differs as well


def test_segments_that_depend_on_each_other_are_tokenized_whole(ask: Encode, pieces: list[bytes]) -> None:
    """The tokenizer treats a word at the very start of a text differently, as SentencePiece's prefix can."""

    def other(text: str, add_special_tokens: bool) -> list[int]:
        return [99, *ask(text, False)] if text else []

    made = TextEncoder(DEMO_MODEL, ask, pieces, JsonTokenizer.read(DEMO_MODEL))
    made._json.encode = lambda text: other(text, False)
    made._ask = other
    made._divide_at(made._json.literals, pieces)
    assert made._literals == {}
    assert made(TURN, False) == other(TURN, False)


@pytest.mark.parametrize("text", [TURN.format("a") * 300, "\n" * 20_000, "\u4e2d\u6587" * 9000])
def test_without_tokenizer_json_long_texts_go_to_the_exported_graph(
    ask: Encode, pieces: list[bytes], without_json: Path, text: str
) -> None:
    made = TextEncoder(without_json, ask, pieces, JsonTokenizer.read(without_json))
    assert made._json is None
    assert made.is_long(text)
    assert made.encode(text, True).tolist() == ask(text, True)
    assert made._graph is not None
    assert made(text[:100], False) == ask(text[:100], False)


def test_without_any_file_the_tokenizer_is_asked(ask: Encode, pieces: list[bytes], tmp_path: Path) -> None:
    made = TextEncoder(tmp_path, ask, pieces, JsonTokenizer.read(tmp_path))
    assert made("hello", False) == ask("hello", False)
    assert made.encode("hello", False).tolist() == ask("hello", False)


@pytest.mark.parametrize("content", ["", "{}", "[1", json.dumps({"version": "1.0", "model": {"type": "Unheard"}})])
def test_a_broken_tokenizer_json_is_passed_over(
    ask: Encode, pieces: list[bytes], without_json: Path, tmp_path: Path, content: str
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(without_json, folder)
    (folder / "tokenizer.json").write_text(content)
    made = TextEncoder(folder, ask, pieces, JsonTokenizer.read(folder))
    assert made._json is None
    assert made("hello", False) == ask("hello", False)


def test_a_pooling_model_has_the_ids_of_its_exported_tokenizer() -> None:
    import openvino as ov

    by_json = PoolingTokenizer(DEMO_EMBED, ov.Core())
    assert by_json._json is not None
    by_graph = GraphTokenizer(DEMO_EMBED)
    assert by_json.single == by_graph.single
    dice = random.Random(1)
    parts = [
        "The ",
        "token",
        "ization",
        "##s ",
        "3.14",
        "don't",
        " un",
        "believ",
        "ABLE ",
        "\t\n",
        "_",
        "9999 ",
        "^`~$",
    ]
    printable = "".join(map(chr, range(32, 127)))
    texts = ["", " ", "[CLS] text", "a[MASK]", "caf\u00e9", "\u4e2d", "a\x01b"]
    texts += ["".join(dice.choices(parts, k=12)) for _ in range(100)]
    texts += ["".join(dice.choices(printable, k=40)) for _ in range(100)]
    assert by_json.encode(texts) == by_graph.encode(texts)
    for tokenizer in (by_json, by_graph):
        with pytest.raises(BadRequest, match="Unicode"):
            tokenizer.encode(["a", "\ud800"])


@pytest.mark.parametrize(
    "literals", [[], ["<a>"], ["<", "<a", "<a>", "<a>b", "\n", "\n\n", "]", "^x", "-", "\u2581\u2581"]]
)
def test_a_text_is_divided_at_the_longest_token_of_each_place(literals: list[str]) -> None:
    dice = random.Random(1)
    longest_first = sorted(literals, key=len, reverse=True)
    expected = re.compile(f"({'|'.join(map(re.escape, longest_first))})" if literals else "(?!)")
    divider = text_encoder._Divider(literals)
    for length in range(60):
        text = "".join(dice.choices([*literals, *"<ab>\n]^x-\u2581"], k=length))
        assert divider.split(text) == expected.split(text)

"""The detokenizer as a table, which is read from its graph, verified with the engine, and rejected if it is not one."""

from __future__ import annotations

import random
import re
import struct
from itertools import accumulate
from pathlib import Path

import pytest
import tokenizers

from lean_ovms.config import DEMO_MODEL
from lean_ovms.engine.loading import vocabulary
from lean_ovms.engine.loading.text_encoder import JsonTokenizer
from lean_ovms.text.decode.detokenizer import Detokenizer, WindowDetokenizer

LLAMA_SP = Path(__file__).parents[2] / "data" / "llama_sp"
WORDS = [b"<s>", "▁Hello".encode(), b"<0xE6>", b"<0x97>", b"<0xA5>", b"!", "日本".encode(), b"", "▁".encode()]
PLAIN = [b"<s>", b" Hello", b"\xe6", b"\x97", b"\xa5", b"!", "日本".encode(), b"", b" "]
SPM = [("RegexNormalization", "▁", " "), ("ByteFallback",), ("FuzeRagged",), ("RegexNormalization", "^ ", "")]
VALIDATE = ("UTF8Validate",)
CLEAN_UP = ("RegexNormalization", r"(?| ([\\.\\?\\!,])| ('[ms])| (') | ('[rv]e)| (n't))", "$1")


class Graph:
    """Writes openvino_detokenizer.xml and .bin as a chain of operators, like openvino_tokenizers."""

    def __init__(self, pieces, special=(0,), *, slice_stop=None, attribute=None):
        self.layers, self.edges, self.data = [], [], b""
        chars = b"".join(pieces)
        ends = [*accumulate(map(len, pieces))]
        inputs = [self.ints([0, *ends[:-1]]), self.ints(ends), self.const(chars)]
        if attribute is None:
            inputs.append(self.skipped(list(special), slice_stop))
        row = f'<data skip_tokens="{attribute or ""}" />'
        self.last = self.layer("VocabDecoder", row, outputs=5, first=5)
        for port, source in enumerate(inputs, 1):
            self.edge(source, 0, self.last, port)
        self.chars_from, self.begins_from = (self.last, 9), (self.last, 7)

    def layer(self, kind, row="", outputs=1, first=0):
        name = str(len(self.layers))
        ports = "".join(f'<port id="{first + i}"/>' for i in range(outputs))
        self.layers.append(
            f'<layer id="{name}" name="n" type="{kind}" version="x">{row}<output>{ports}</output></layer>'
        )
        return name

    def edge(self, source, from_port, target, to_port):
        self.edges.append(
            f'<edge from-layer="{source}" from-port="{from_port}" to-layer="{target}" to-port="{to_port}"/>'
        )

    def const(self, data, kind="u8", count=None):
        count = len(data) if count is None else count
        row = f'<data element_type="{kind}" shape="{count}" offset="{len(self.data)}" size="{max(len(data), 1)}"/>'
        self.data += data or b"\0"
        while len(self.data) % 4:
            self.data += b"\0"
        return self.layer("Const", row)

    def ints(self, values):
        return self.const(struct.pack(f"<{len(values)}i", *values), "i32", len(values))

    def skipped(self, special, stop):
        whole = self.ints(special)
        if stop is None:
            return whole
        name = self.layer("Slice")
        for port, source in enumerate([whole, self.ints([0]), self.ints([stop]), self.ints([1])]):
            self.edge(source, 0, name, port)
        return name

    def add(self, kind, *constants):
        if kind == "FuzeRagged":
            name = self.layer(kind, outputs=2, first=4)
            self.begins_from = (name, 4)
            return self
        name = self.layer(kind, outputs=3, first=5)
        self.edge(*self.begins_from, name, 0)
        self.edge(*self.chars_from, name, 2)
        for port, text in enumerate(constants, 3):
            self.edge(self.const(text.encode()), 0, name, port)
        self.begins_from, self.chars_from = (name, 5), (name, 7)
        return self

    def write(self, directory):
        end = self.layer("StringTensorPack", outputs=1, first=3)
        self.edge(*self.begins_from, end, 0)
        self.edge(*self.chars_from, end, 2)
        body = f"<layers>{''.join(self.layers)}</layers><edges>{''.join(self.edges)}</edges>"
        (directory / "openvino_detokenizer.xml").write_text(f"<net>{body}</net>")
        (directory / "openvino_detokenizer.bin").write_bytes(self.data)
        return directory


def graph(directory, pieces, *ops, **more):
    g = Graph(pieces, **more)
    for op in ops:
        g.add(*op)
    return g.write(directory)


class Decoder:
    """A tokenizer like openvino_genai's, by the definition: it decodes all bytes at once."""

    def __init__(self, pieces=PLAIN, special=(0,), strip=False, vocab=None):
        self.pieces, self.special, self.strip, self.vocab = pieces, special, strip, vocab
        self.calls = 0

    def decode(self, tokens, skip_special_tokens=True):
        self.calls += 1
        if tokens and isinstance(tokens[0], list):
            return [self.one(row, skip_special_tokens) for row in tokens]
        return self.one(tokens, skip_special_tokens)

    def one(self, tokens, skip):
        data = b"".join(self.pieces[t] for t in tokens if not (skip and t in self.special))
        return (data.removeprefix(b" ") if self.strip else data).decode("utf-8", "replace")

    def get_vocab(self):
        return {piece: i for i, piece in enumerate(self.pieces)} if self.vocab is None else self.vocab


# --- reading the graph ---------------------------------------------------------------------------------------------


def test_byte_level_bpe(tmp_path):
    found = vocabulary.read(graph(tmp_path, PLAIN, ("FuzeRagged",), VALIDATE))
    assert found.pieces == PLAIN
    assert found.special == frozenset({0})
    assert (found.strip_leading_space, found.exact) == (False, True)


def test_sentencepiece_with_byte_fallback(tmp_path):
    found = vocabulary.read(graph(tmp_path, WORDS, *SPM, VALIDATE))
    assert found.pieces == PLAIN
    assert (found.strip_leading_space, found.exact) == (True, True)


def test_spaces_before_punctuation_taken_out_at_the_end(tmp_path):
    class Cleaned(Decoder):
        def one(self, tokens, skip):
            return super().one(tokens, skip).replace(" !", "!")

    path = graph(tmp_path, PLAIN, ("FuzeRagged",), VALIDATE, CLEAN_UP)
    assert vocabulary.build(path, Cleaned()).clean_up
    assert vocabulary.build(path, Cleaned()).exact
    assert not vocabulary.build(path, Decoder()).exact


def test_an_old_file_in_gpt2s_alphabet(tmp_path):
    pieces = ["Ġa".encode(), "Ċ".encode(), "Ã©".encode(), "<|日|>".encode()]
    found = vocabulary.read(graph(tmp_path, pieces, ("CharsToBytes",), ("FuzeRagged",), VALIDATE))
    assert found.pieces == [b" a", b"\n", "é".encode(), "<|日|>".encode()]


@pytest.mark.parametrize(
    ("more", "special"),
    [
        ({"special": (0, 5)}, {0, 5}),
        ({"special": ()}, set()),
        ({"special": (0, 5), "slice_stop": 2147483647}, {0, 5}),
        ({"special": (0, 5), "slice_stop": 0}, set()),
        ({"attribute": "0, 5,7"}, {0, 5, 7}),
    ],
)
def test_skipped_ids_however_they_are_stored(tmp_path, more, special):
    assert vocabulary.read(graph(tmp_path, PLAIN, ("FuzeRagged",), VALIDATE, **more)).special == special


@pytest.mark.parametrize(
    ("op", "piece", "rewritten"),
    [
        (("RegexNormalization", "X", "yy"), b"aXbX", b"ayybyy"),
        (("RegexNormalization", "^X", "y"), b"XXa", b"yXa"),
        (("RegexNormalization", "\\.", "!"), b"a.b", b"a!b"),
        (("RegexNormalization", "##", ""), b"##ing", b"ing"),
        (("ByteFallback",), b"<0x0A>", b"\n"),
        (("ByteFallback",), b"<0xe2>", b"\xe2"),
        (("ByteFallback",), b"<0x0A> ", b"<0x0A> "),
        (("ByteFallback",), b"<0xZZ>", b"<0xZZ>"),
    ],
)
def test_what_an_operator_does_to_a_token(tmp_path, op, piece, rewritten):
    found = vocabulary.read(graph(tmp_path, [b"<s>", piece], op, ("FuzeRagged",), VALIDATE))
    assert found.pieces[1] == rewritten


@pytest.mark.parametrize(
    "ops",
    [
        [("FuzeRagged",), ("RegexNormalization", "</w>", " "), VALIDATE],
        [("FuzeRagged",), VALIDATE, ("RegexNormalization", r"(?| ([\.\?\!,])| ('[ms]))", "$1")],
        [("FuzeRagged",), VALIDATE, CLEAN_UP, ("RegexNormalization", "^ ", "")],
        [("FuzeRagged",), VALIDATE, CLEAN_UP, CLEAN_UP],
        [("FuzeRagged",), ("RegexNormalization", "(^ )([^ ])", "$2"), VALIDATE],
        [("FuzeRagged",), ("RegexNormalization", "^ ", ""), ("RegexNormalization", "^ ", ""), VALIDATE],
        [("RegexNormalization", "a|b", "c"), ("FuzeRagged",), VALIDATE],
        [("RegexNormalization", "(a)", "$1"), ("FuzeRagged",), VALIDATE],
        [("RegexNormalization", "a", "$0"), ("FuzeRagged",), VALIDATE],
        [("Brandnew",), ("FuzeRagged",), VALIDATE],
        [("FuzeRagged",), ("Brandnew",)],
        [VALIDATE, ("FuzeRagged",)],
        [VALIDATE],
        [],
    ],
)
def test_what_is_no_table_is_not_exact_but_shows_tokens(tmp_path, ops):
    found = vocabulary.build(graph(tmp_path, PLAIN, *ops), Decoder())
    assert not found.exact
    assert found.pieces == PLAIN
    assert found.special == frozenset({0})


def test_tokens_of_an_inexact_table_are_still_rewritten(tmp_path):
    """Single tokens are shown like this in log probabilities."""
    ops = [*SPM, ("Brandnew",), VALIDATE]
    found = vocabulary.build(graph(tmp_path, WORDS, *ops), Decoder())
    assert (found.exact, found.pieces) == (False, PLAIN)


# --- proof ---------------------------------------------------------------------------------------------------------


def test_the_table_is_proven_against_the_engine(tmp_path):
    decoder = Decoder()
    assert vocabulary.build(graph(tmp_path, PLAIN, ("FuzeRagged",), VALIDATE), decoder).exact
    assert decoder.calls == 4, "each decode costs"


@pytest.mark.parametrize(
    "decoder",
    [Decoder(special=(0, 1)), Decoder(special=()), Decoder(strip=True), Decoder(pieces=[*PLAIN[:5], b"?", *PLAIN[6:]])],
    ids=["hides more", "hides less", "strips a space", "one other token"],
)
def test_any_difference_makes_it_inexact(tmp_path, decoder):
    found = vocabulary.build(graph(tmp_path, PLAIN, ("FuzeRagged",), VALIDATE), decoder)
    assert not found.exact
    assert found.pieces == PLAIN


@pytest.mark.parametrize(("shown", "exact"), [("<code>", True), ("<other>", False)])
def test_tokenizer_json_is_believed_where_the_exported_detokenizer_takes_a_tag_for_a_byte(tmp_path, shown, exact):
    words = [b"<s>", "▁Hello".encode(), "日本".encode(), "▁".encode(), b"<code>"]
    graph(tmp_path, words, *SPM)
    pieces = {piece.decode(): number for number, piece in enumerate(words)}
    pieces[shown] = pieces.pop("<code>")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(pieces, "<s>"))
    made.add_special_tokens(["<s>"])
    parts = [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    made.decoder = tokenizers.decoders.Sequence(parts)
    made.save(str(tmp_path / "tokenizer.json"))
    exported = Decoder([b"<s>", b" Hello", "日本".encode(), b" ", b"\xcd"], strip=True)
    found = vocabulary.build(tmp_path, exported, JsonTokenizer.read(tmp_path))
    assert (found.exact, found.pieces[-1]) == (exact, b"<code>")


def test_the_number_of_replacement_characters_does_not_matter(tmp_path):
    class Verbose(Decoder):
        def one(self, tokens, skip):
            return super().one(tokens, skip).replace("\ufffd", "\ufffd\ufffd")

    assert vocabulary.build(graph(tmp_path, PLAIN, ("FuzeRagged",), VALIDATE), Verbose()).exact


def test_bytes_that_are_no_text_may_be_left_out(tmp_path):
    """GGUF models' detokenizers do so. Half a character alone then prints nothing, but it is not a special token."""

    class Silent(Decoder):
        def one(self, tokens, skip):
            return super().one(tokens, skip).replace("\ufffd", "")

    assert vocabulary.build(graph(tmp_path, PLAIN, ("FuzeRagged",), VALIDATE), Silent()).exact
    (tmp_path / "openvino_detokenizer.xml").unlink()
    found = vocabulary.build(tmp_path, Silent())
    assert (found.pieces, found.special, found.exact) == (PLAIN, {0}, True)


def test_one_odd_token_among_many_is_noticed(tmp_path):
    pieces = [b"w%d" % i for i in range(20_000)]
    odd = [*pieces]
    odd[12_345] = b"odd"
    path = graph(tmp_path, pieces, ("FuzeRagged",), VALIDATE)
    assert vocabulary.build(path, Decoder(pieces)).exact
    assert not vocabulary.build(path, Decoder(odd)).exact


def test_a_decode_that_fails_proves_nothing(tmp_path):
    class Broken(Decoder):
        def decode(self, tokens, skip_special_tokens=True):
            raise RuntimeError("no")

    assert not vocabulary.build(graph(tmp_path, PLAIN, ("FuzeRagged",), VALIDATE), Broken()).exact


# --- without a readable graph --------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [{}, {"▁a": 0, b"b": 3}], ids=["empty", "not what decode prints"])
def test_a_list_that_is_not_what_decode_prints_is_not_exact(tmp_path, vocab):
    found = vocabulary.build(tmp_path, Decoder(vocab=vocab))
    assert not found.exact
    assert len(found.pieces) == (4 if vocab else 0)


def test_a_tokenizer_without_a_list_is_decoded_by_the_engine(tmp_path):
    class Listless(Decoder):
        def get_vocab(self):
            raise RuntimeError("no")

    assert vocabulary.build(tmp_path, Listless()) == vocabulary.Vocabulary(pieces=[], exact=False)


@pytest.mark.parametrize(
    "xml", ["", "<net", "<net/>", "<net><layers><layer id='0' type='VocabDecoder'/></layers></net>"]
)
def test_a_broken_file_is_like_none(tmp_path, xml):
    (tmp_path / "openvino_detokenizer.xml").write_text(xml)
    (tmp_path / "openvino_detokenizer.bin").write_bytes(b"")
    assert vocabulary.build(tmp_path, Decoder()).exact
    graph(tmp_path, PLAIN, ("FuzeRagged",), VALIDATE)
    (tmp_path / "openvino_detokenizer.bin").write_bytes(b"\0" * 10)
    assert vocabulary.build(tmp_path, Decoder()).exact


# --- the real thing ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[DEMO_MODEL, LLAMA_SP], ids=["byte level", "byte fallback"])
def real(request):
    import openvino_genai

    tokenizer = openvino_genai.Tokenizer(str(request.param))
    return tokenizer, vocabulary.build(request.param, tokenizer)


@pytest.mark.model
def test_real_tokenizers_have_exact_tables(real):
    _, found = real
    assert found.exact
    assert found.special == {0, 1, 2}


def texts(tokenizer, rows, skip):
    return tokenizer.decode(rows, skip_special_tokens=skip)


@pytest.mark.model
@pytest.mark.parametrize("skip", [True, False])
def test_token_by_token_reads_as_the_engine_decodes(real, skip):
    """Thousands of random rows: any ids, only ids of bytes and fragments, and rows that begin with spaces."""
    tokenizer, found = real
    dice = random.Random(7)
    everything = range(len(found.pieces))
    fragments = [i for i in everything if not _is_text(found.pieces[i])]
    spaced = [i for i in everything if found.pieces[i][:1] == b" "]
    for pool in (everything, fragments, [*fragments, *dice.choices(everything, k=40)], spaced):
        rows = [dice.choices(pool, k=16) for _ in range(800)]
        for row, text in zip(rows, texts(tokenizer, rows, skip), strict=True):
            detokenizer = Detokenizer(found, skip)
            shown = "".join([detokenizer.feed([token]) for token in row]) + detokenizer.flush()
            assert _collapsed(shown) == _collapsed(text), row


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _collapsed(text: str) -> str:
    return re.sub("\ufffd+", "\ufffd", text)


@pytest.mark.model
async def test_a_window_of_the_engines_own_decodes_reads_as_one_decode(real):
    """This is for models whose table is not exact. The two models here have exact tables, so that long random texts
    can be compared."""
    tokenizer, found = real

    async def in_engine(ids, skip_special_tokens):
        return tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    dice = random.Random(9)
    whole_tokens = [i for i in range(len(found.pieces)) if _is_text(found.pieces[i])]
    characters = [tokenizer.encode(c, add_special_tokens=False).input_ids.data[0].tolist() for c in "🙂日é"]
    for _ in range(10):
        words = [dice.choice([[dice.choice(whole_tokens)], dice.choice(characters)]) for _ in range(150)]
        tokens = [token for word in words for token in word]
        window, shown = WindowDetokenizer(), ""
        for i in range(0, len(tokens), 5):
            shown += await window.feed(tokens[i : i + 5], i + 5 >= len(tokens), True, in_engine)
        assert shown == tokenizer.decode(tokens)

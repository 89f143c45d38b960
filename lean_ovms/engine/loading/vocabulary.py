"""Reads a model's detokenizer (openvino_detokenizer.xml) as a table with the bytes of every token.

The file is a straight chain of operators after VocabDecoder. What each of them does to a single token, or to the very
start of the text, goes into the table. The table is inexact if it cannot represent an operator, or if it differs from
the engine's own decoder; it is still good enough for single tokens.

This runs in the engine process, once, while the model is loading.
"""

from __future__ import annotations

import logging
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree  # a model's files are trusted input, like its weights
from xml.etree.ElementTree import ParseError

from ...repository import model_file
from ...types.engine import CLEAN_UP, Vocabulary
from ...util.files import open_regular, read_bytes
from .text_encoder import FILE, JsonTokenizer

log = logging.getLogger(__name__)

DETOKENIZER = "openvino_detokenizer"
_BYTE_TOKEN = re.compile(rb"<0x([0-9A-Fa-f]{2})>")
_LITERAL = re.compile(rb"(?:[^\\^$.|?*+()\[\]{}]|\\[^A-Za-z0-9])*")
_CLEAN_UP = (rb"(?| ([\\.\\?\\!,])| ('[ms])| (') | ('[rv]e)| (n't))", b"$1")
_SPACED = re.compile(CLEAN_UP)
"""Matches what clean_up_tokenization_spaces changes, as openvino_tokenizers writes it (2024.0 to 2026.4);
types.engine.CLEAN_UP is the same in Python."""

Rewrite = Callable[[bytes], bytes]


def build(model_dir: Path, tokenizer: Any, library: JsonTokenizer | None = None) -> Vocabulary:
    """Returns the table of the model's detokenizer. It is marked inexact if neither tokenizer prints the same texts.

    It never raises: a model whose detokenizer is not understood is decoded in the engine. It takes 60 ms for 131k ids.

    Args:
        model_dir: The directory of the model, or its file.
        tokenizer: The model's openvino_genai.Tokenizer, with whose texts the table is compared.
        library: The model's tokenizer.json, which decides if the two differ; None if there is none.
    """
    if (file := model_file.of(model_dir)) is not None:
        return from_file(file, tokenizer)
    try:
        vocabulary = read(model_dir)
    except NotUnderstood:
        return from_tokens(tokenizer)
    compared = _compared(vocabulary, tokenizer)
    if compared.exact or not vocabulary.exact:
        return compared
    return vocabulary if library is not None and _written_so(vocabulary, library, model_dir) else compared


def _written_so(vocabulary: Vocabulary, library: JsonTokenizer, model_dir: Path) -> bool:
    """Returns whether tokenizer.json agrees with a table that differs from the engine's decoder.

    openvino_tokenizers (2026.4) takes every token of six characters in angle brackets for a byte, such as Gemma's
    <code>.
    """
    starts = (replace(vocabulary, strip_leading_space=strip) for strip in (True, False))  # no matter for tokens
    if not any(agrees(one, library) for one in starts):
        return False
    text = "the exported detokenizer of %s and %s differ in the texts of some tokens; the latter is used"
    log.warning(text, model_dir, FILE)
    return True


def _compared(vocabulary: Vocabulary, tokenizer: Any) -> Vocabulary:
    return replace(vocabulary, exact=vocabulary.exact and agrees(vocabulary, tokenizer))


# --- from graph to table -------------------------------------------------------------------------------------------


def read(model_dir: Path) -> Vocabulary:
    """Returns the table that the graph describes, without checking it. Raises NotUnderstood."""
    try:
        return _read(model_dir)
    except (OSError, ParseError, ValueError, KeyError, IndexError) as error:
        raise NotUnderstood(str(error)) from error


def _read(model_dir: Path) -> Vocabulary:
    graph = Graph(model_dir / f"{DETOKENIZER}.xml")
    decoder = graph.only("VocabDecoder")
    begins, ends, chars = graph.ints(decoder, 1), graph.ints(decoder, 2), graph.bytes(decoder, 3)
    pieces = [chars[begin:end] for begin, end in zip(begins, ends, strict=True)]
    rewrites: list[Rewrite] = []
    try:
        strip, clean_up = _chain(graph, graph.following(decoder), rewrites)
        exact = True
    except NotUnderstood:
        strip = clean_up = exact = False
    for rewrite in rewrites:
        pieces = [rewrite(piece) for piece in pieces]
    special = _special(graph, decoder)
    return Vocabulary(pieces=pieces, special=special, strip_leading_space=strip, clean_up=clean_up, exact=exact)


def _special(graph: Graph, decoder: str) -> frozenset[int]:
    """Returns the ids that VocabDecoder skips: its fifth input, or an attribute (openvino_tokenizers before 2024.4)."""
    if graph.has_input(decoder, 4):
        return frozenset(graph.ints(decoder, 4))
    listed = graph.attributes(decoder).get("skip_tokens", "")
    return frozenset(int(word) for word in listed.replace(",", " ").split())


def _chain(graph: Graph, layer: str, rewrites: list[Rewrite]) -> tuple[bool, bool]:
    """Reads the operators after VocabDecoder; returns strip_leading_space and clean_up.

    What the operators before FuzeRagged do to each token is appended to `rewrites`. FuzeRagged joins only the begins
    and ends, and the characters bypass it. So an operator works on the joined text if its begins come from FuzeRagged
    or from another operator on the joined text.
    """
    strip = joined = clean_up = False
    while (kind := graph.kind(layer)) != "StringTensorPack":
        joined = joined or graph.source_kind(layer, 0) == "FuzeRagged"
        if not joined:
            rewrites.append(_rewrite(graph, layer, kind))
        elif kind == "RegexNormalization" and not (strip or clean_up) and _pattern(graph, layer) == (b"^ ", b""):
            strip = True
        elif kind == "RegexNormalization" and not clean_up and _pattern(graph, layer) == _CLEAN_UP:
            clean_up = True
        elif kind != "UTF8Validate":
            raise NotUnderstood(f"{kind} on the joined text")
        layer = graph.following(layer)
    if not joined and graph.source_kind(layer, 0) != "FuzeRagged":
        raise NotUnderstood("tokens are not joined")
    return strip, clean_up


def _rewrite(graph: Graph, layer: str, kind: str) -> Rewrite:
    if kind == "ByteFallback":
        return byte_fallback
    if kind == "CharsToBytes":
        return chars_to_bytes
    if kind != "RegexNormalization":
        raise NotUnderstood(f"{kind} on tokens")
    pattern, replacement = _pattern(graph, layer)
    at_start = pattern.startswith(b"^")
    literal = pattern[at_start:]
    if not _LITERAL.fullmatch(literal) or b"$" in replacement or b"\\" in replacement:
        raise NotUnderstood(f"pattern {pattern!r}")
    literal = re.sub(rb"\\(.)", rb"\1", literal)
    if at_start:
        return lambda piece: replacement + piece.removeprefix(literal) if piece.startswith(literal) else piece
    return lambda piece: piece.replace(literal, replacement)


def _pattern(graph: Graph, layer: str) -> tuple[bytes, bytes]:
    return graph.bytes(layer, 3), graph.bytes(layer, 4)


def byte_fallback(piece: bytes) -> bytes:
    """Returns the byte that a SentencePiece token such as <0xE2> stands for; any other token is returned unchanged."""
    if not piece.startswith(b"<0x"):
        return piece
    found = _BYTE_TOKEN.fullmatch(piece)
    return bytes.fromhex(found[1].decode()) if found else piece


def _byte_alphabet() -> dict[str, int]:
    """Returns the bytes of GPT-2's alphabet by their printable characters.

    A printable Latin-1 character stands for itself; the other bytes are mapped to U+0100 and above.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_BYTES = _byte_alphabet()


def chars_to_bytes(piece: bytes) -> bytes:
    """Converts a token from GPT-2's alphabet, as openvino_tokenizers before 2024.3 writes it, to bytes."""
    try:
        return text_to_bytes(piece.decode())
    except UnicodeDecodeError:
        return piece


def text_to_bytes(text: str) -> bytes:
    """Returns the bytes for which a token's characters stand in GPT-2's alphabet; its UTF-8 if one is not in it."""
    try:
        return bytes(map(_BYTES.__getitem__, text))
    except KeyError:
        return text.encode()


# --- without a graph -----------------------------------------------------------------------------------------------


def from_tokens(tokenizer: Any) -> Vocabulary:
    """Returns a table of the tokenizer's own token list, for models whose detokenizer is missing or unreadable."""
    pieces: list[bytes] = []
    try:
        vocab: dict[Any, int] = tokenizer.get_vocab()
        pieces = [b""] * (max(vocab.values(), default=-1) + 1)
        for token, index in vocab.items():
            pieces[index] = token if isinstance(token, bytes) else str(token).encode()
        return _compared(Vocabulary(pieces=pieces, special=_hidden(pieces, tokenizer)), tokenizer)
    except Exception:  # from the engine: a tokenizer whose tokens cannot be listed decodes by itself
        return Vocabulary(pieces=pieces, exact=False)


def from_file(file: model_file.ModelFile, tokenizer: Any) -> Vocabulary:
    """Returns the table of a model file such as GGUF.

    GenAI hides user-defined tokens (<think>, <tool_call>) like control tokens, although parsers need them. The same
    model converted to OpenVINO shows them, so they are shown here, too.
    """
    vocabulary = from_tokens(tokenizer)
    return replace(vocabulary, special=vocabulary.special - file.user_defined())


def _hidden(pieces: list[bytes], tokenizer: Any) -> frozenset[int]:
    """Returns the ids that have a text but print nothing on their own. This includes parts of characters."""
    alone = tokenizer.decode([[index] for index in range(len(pieces))], skip_special_tokens=True)
    return frozenset(i for i, text in enumerate(alone) if not text and pieces[i].decode("utf-8", "ignore"))


# --- proof ---------------------------------------------------------------------------------------------------------

ROWS, WIDTH = 200, 24


def agrees(vocabulary: Vocabulary, tokenizer: Any) -> bool:
    """Returns whether the table prints the same as the engine.

    The number of U+FFFD for bytes that are not UTF-8 may differ: some detokenizers omit them, others repeat them.
    Compared are ROWS random texts of WIDTH ids each, half of them with spaces in front, with and without special
    tokens, and one text with all ids. All texts have the same length, since shorter rows of a batch would be padded.
    """
    size = len(vocabulary.pieces)
    if not size:
        return False
    rows, everything = _samples(vocabulary), _all_ids(size)
    specials = sorted(vocabulary.special) or everything[:1]
    try:
        return (
            _same(vocabulary, True, rows, tokenizer.decode(rows, skip_special_tokens=True))
            and _same(vocabulary, False, rows, tokenizer.decode(rows, skip_special_tokens=False))
            and _same(vocabulary, False, [specials], [tokenizer.decode(specials, skip_special_tokens=False)])
            and _same(vocabulary, True, [everything], [tokenizer.decode(everything, skip_special_tokens=True)])
        )
    except Exception:  # from the engine: a failed decode proves nothing
        return False


def _same(vocabulary: Vocabulary, skip: bool, rows: list[list[int]], texts: list[str]) -> bool:
    return all(_text(vocabulary, skip, row) == _without_replaced(text) for row, text in zip(rows, texts, strict=True))


def _samples(vocabulary: Vocabulary) -> list[list[int]]:
    dice = random.Random(0)
    ids = range(len(vocabulary.pieces))
    rows = [dice.choices(ids, k=WIDTH) for _ in range(ROWS)]
    some = ids[:: len(ids) // 4096 + 1]
    if spaced := [i for i in some if vocabulary.pieces[i].startswith(b" ")]:
        for row in rows[: ROWS // 2]:
            front = dice.randint(1, 3)
            row[:front] = dice.choices(spaced, k=front)
    return rows


def _all_ids(size: int) -> list[int]:
    """Returns every id once, far from its neighbours. This takes 10 ms; a shuffle of 131k ids would take 90."""
    stride = int(size * 0.618) or 1
    while math.gcd(stride, size) != 1:
        stride += 1
    return [i * stride % size for i in range(size)]


def _text(vocabulary: Vocabulary, skip: bool, tokens: Sequence[int]) -> str:
    hidden = vocabulary.special if skip else frozenset[int]()
    data = b"".join([vocabulary.pieces[token] for token in tokens if token not in hidden])
    if vocabulary.strip_leading_space:
        data = data.removeprefix(b" ")
    text = data.decode("utf-8", "replace")
    if vocabulary.clean_up:
        text = _SPACED.sub(lambda match: match[0].strip(" "), text)
    return _without_replaced(text)


def _without_replaced(text: str) -> str:
    return text.replace("\ufffd", "")


class NotUnderstood(Exception):
    """Raised if the graph does not have the expected form."""


class Graph:
    """The layers of a network in OpenVINO's IR (version 11), by their ids, read without openvino.

    Of each layer it has what tokenizers and detokenizers need. It takes 1 ms, needs no library of their operators, and
    avoids an ov.Core, which would crash the process when it is deleted before its model. A broken file raises OSError,
    ElementTree.ParseError, KeyError or ValueError.
    """

    def __init__(self, xml: Path) -> None:
        with open_regular(xml) as file:
            root = ElementTree.parse(file).getroot()  # noqa: S314 - see the import
        self.layers = {layer.attrib["id"]: layer for layer in root.iterfind("layers/layer")}
        self._sources: dict[tuple[str, str], str] = {}
        self._consumers: dict[tuple[str, str], list[str]] = {}
        for edge in root.iterfind("edges/edge"):
            source, target = edge.attrib["from-layer"], edge.attrib["to-layer"]
            self._sources[target, edge.attrib["to-port"]] = source
            self._consumers.setdefault((source, edge.attrib["from-port"]), []).append(target)
        self._data = memoryview(read_bytes(xml.with_suffix(".bin")))

    def only(self, kind: str) -> str:
        """Returns the only layer of a kind. Raises NotUnderstood if there is none or several."""
        found = [name for name in self.layers if self.kind(name) == kind]
        if len(found) != 1:
            raise NotUnderstood(f"{len(found)} layers of kind {kind}")
        return found[0]

    def kind(self, layer: str) -> str:
        return self.layers[layer].attrib["type"]

    def attributes(self, layer: str) -> dict[str, str]:
        data = self.layers[layer].find("data")
        return {} if data is None else data.attrib

    def source_kind(self, layer: str, port: int) -> str:
        return self.kind(self._sources[layer, str(port)])

    def has_input(self, layer: str, port: int) -> bool:
        return (layer, str(port)) in self._sources

    def following(self, layer: str) -> str:
        """Returns the layer that consumes the characters of a layer, by convention its last output."""
        ports = self.layers[layer].findall("output/port")
        consumers = self._consumers.get((layer, ports[-1].attrib["id"]), []) if ports else []
        if len(consumers) != 1:
            raise NotUnderstood(f"{self.kind(layer)} does not feed exactly one layer")
        return consumers[0]

    def bytes(self, layer: str, port: int) -> bytes:
        return bytes(self._constant(layer, port, ("u8",)))

    def ints(self, layer: str, port: int) -> list[int]:
        """Returns the 32-bit integers at an input.

        The input must be a constant or a slice of one; slices serve to switch off skipped ids.
        """
        source = self._sources[layer, str(port)]
        if self.kind(source) != "Slice":
            return self._constant(layer, port, ("i32",)).cast("i").tolist()
        start, stop, step = (self.ints(source, p)[0] for p in (1, 2, 3))
        return self.ints(source, 0)[start:stop:step]

    def _constant(self, layer: str, port: int, types: tuple[str, ...]) -> memoryview:
        source = self._sources[layer, str(port)]
        row = self.attributes(source)
        if self.kind(source) != "Const" or row["element_type"] not in types:
            raise NotUnderstood(f"input {port} of {self.kind(layer)} is not a constant")
        size = 0 if row["shape"] == "0" else int(row["size"])
        offset = int(row["offset"])
        if offset + size > len(self._data):
            raise NotUnderstood("the data file is too short")
        return self._data[offset : offset + size]

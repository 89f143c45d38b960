"""The header of a GGUF file: metadata and tensor list, checked before openvino-genai maps the file and trusts it.

A crafted file or a broken download may name sizes beyond the end of the file, so every length is checked against it. A
file that openvino-genai cannot load is refused with the reason. Imports no openvino. 0.3 s for a vocabulary of 150,000.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import StartError
from ..types import Json
from ..util.files import open_regular

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""The architectures that openvino-genai 2026.4.1 can load; the only tokenizer that it supports is "gpt2"."""
CONTROL, USER_DEFINED = 3, 4
STRING, ARRAY = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 12: (256, 144), 14: (256, 210), 30: (1, 2)}
"""Elements and bytes of a block by tensor type: F32, F16, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K, BF16."""
MAX_ENTRIES, MAX_TENSORS, MAX_DIMENSIONS = 1 << 16, 1 << 20, 4
FIRST_VERSION, LAST_VERSION = 2, 3
DEFAULT_ALIGNMENT = 32
MAX_ELEMENTS = (1 << 63) - 1
_LENGTH = struct.Struct("<Q")


PULL_AGAIN = "copy the file again, or pull it with --source_model, --gguf_filename and --overwrite_models"
EXPORT = "serve the original model: --source_model ORG/NAME, or optimum-cli export openvino --model ORG/NAME DIRECTORY"


class Malformed(Exception):
    """The bytes are not those of a GGUF file."""


class Unsupported(Exception):
    """A whole GGUF file that openvino-genai cannot load."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a GGUF file. metadata: by key; for an array of strings its length. tensors: dimensions by name, the
    fastest first."""

    metadata: dict[str, Any]
    tensors: dict[str, list[int]]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def number(self, name: str) -> int:
        """Returns a number of the architecture; 0: missing."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        return value if type(value) is int and value > 0 else 0

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary."""
        count = self.metadata.get("tokenizer.ggml.tokens", 0)
        return count if type(count) is int else 0

    @property
    def logits_width(self) -> int:
        """Rows of the output layer, or of the embedding table if they are tied."""
        rows = self.tensors.get("output.weight") or self.tensors.get("token_embd.weight") or [0]
        return rows[-1]

    @property
    def user_defined(self) -> frozenset[int]:
        """Ids of user-defined tokens: one token each, but visible text, such as <think>."""
        kinds = self.metadata.get("tokenizer.ggml.token_type")
        return frozenset(i for i, kind in enumerate(kinds) if kind == USER_DEFINED) if kinds else frozenset()

    def config(self) -> Json:
        """Returns the fields that `model_config` reads from a config.json."""
        return {
            "max_position_embeddings": self.number("context_length"),
            "vocab_size": self.vocab_size,
            "num_hidden_layers": self.number("block_count"),
            "num_attention_heads": self.number("attention.head_count"),
            "num_key_value_heads": self.number("attention.head_count_kv"),
            "hidden_size": self.number("embedding_length"),
            "head_dim": self.number("attention.key_length"),
        }


def read(path: Path) -> Header:
    """Returns the header of a file that can be loaded. Raises StartError with the reason if it cannot."""
    try:
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = parse(data)
        _check(header)
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}") from error
    except (Malformed, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise StartError(f"{path} is not a whole GGUF file: {error}; {PULL_AGAIN}") from error
    except Unsupported as error:
        raise StartError(f"{path} cannot be served: {error}; {EXPORT}") from error
    return header


def parse(data: mmap.mmap | bytes) -> Header:
    """Raises Malformed."""
    cursor = Cursor(data)
    if cursor.read(4) != b"GGUF":
        raise Malformed("it does not begin with GGUF")
    version = cursor.number("I")
    if not FIRST_VERSION <= version <= LAST_VERSION:
        raise Malformed(f"version {version} is not known")
    tensors, entries = cursor.number("Q"), cursor.number("Q")
    if tensors > MAX_TENSORS or entries > MAX_ENTRIES:
        raise Malformed(f"it claims {entries} entries and {tensors} tensors")
    metadata: dict[str, Any] = {}
    for _ in range(entries):
        key = cursor.text()
        metadata[key] = _value(cursor, cursor.number("I"))
    rows = [_tensor(cursor) for _ in range(tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1:
        raise Malformed("its alignment is no number")
    start = -(-cursor.position // alignment) * alignment
    for name, shape, kind, offset in rows:
        if start + offset + _size(shape, kind) > len(data):
            raise Malformed(f"it ends before the tensor {name} does")
    return Header(metadata, {name: shape for name, shape, _, _ in rows})


class Cursor:
    """A position in the data, with reads that are checked against its end."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data = data
        self.position = 0

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes. Raises Malformed at the end."""
        end = self.position + size
        if end > len(self._data):
            raise Malformed("it ends in its header")
        piece = self._data[self.position : end]
        self.position = end
        return piece

    def skip_texts(self, count: int) -> None:
        """Skip `count` strings. Each has a length to read, so a false count ends with the data."""
        for _ in range(count):
            length = _LENGTH.unpack(self.read(_LENGTH.size))[0]
            self.position += length

    def number(self, code: str) -> Any:
        """Returns one little-endian number."""
        return struct.unpack("<" + code, self.read(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        """Returns a string: its length, and UTF-8."""
        return self.read(self.number("Q")).decode("utf-8", "replace")


def _value(cursor: Cursor, kind: int) -> Any:
    if kind == STRING:
        return cursor.text()
    if kind in NUMBERS:
        return cursor.number(NUMBERS[kind])
    if kind != ARRAY:
        raise Malformed(f"values of kind {kind} are not known")
    inner, count = cursor.number("I"), cursor.number("Q")
    if inner in NUMBERS:
        code = NUMBERS[inner].replace("?", "B")
        return array(code, cursor.read(count * struct.calcsize("<" + code))).tolist()
    if inner != STRING:
        raise Malformed(f"an array of kind {inner} is not known")
    cursor.skip_texts(count)
    return count


def _tensor(cursor: Cursor) -> tuple[str, list[int], int, int]:
    name, count = cursor.text(), cursor.number("I")
    if count > MAX_DIMENSIONS:
        raise Malformed(f"the tensor {name} has {count} dimensions")
    shape = [cursor.number("Q") for _ in range(count)]
    return name, shape, cursor.number("I"), cursor.number("Q")


def _size(shape: list[int], kind: int) -> int:
    """Returns the bytes of a tensor; 0 for an unknown type, which openvino-genai reports."""
    elements, size = BLOCKS.get(kind, (1, 0))
    count = 1
    for dimension in shape:
        count *= dimension
    if count > MAX_ELEMENTS:
        raise Malformed("a tensor is larger than any file")
    return -(-count // elements) * size


def _check(header: Header) -> None:
    """Raise Malformed or Unsupported for a file that openvino-genai would fail to load, or crash on."""
    known = ", ".join(ARCHITECTURES)
    if header.architecture not in ARCHITECTURES:
        raise Unsupported(f"openvino-genai loads GGUF files of {known}, not of {header.architecture or 'nothing'}")
    for name in ("block_count", "embedding_length", "attention.head_count"):
        if not header.number(name):
            raise Malformed(f"{header.architecture}.{name} is missing")
    tokenizer = header.metadata.get("tokenizer.ggml.model")
    if tokenizer != "gpt2":
        raise Unsupported(f"openvino-genai reads GGUF tokenizers of the kind gpt2, not {tokenizer or 'none'}")
    tokens = header.vocab_size
    kinds = header.metadata.get("tokenizer.ggml.token_type")
    if not tokens or (kinds is not None and (not isinstance(kinds, list) or len(kinds) != tokens)):
        raise Malformed("its vocabulary is not whole")
    for name in ("bos", "eos", "padding"):
        value = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if value is not None and not (type(value) is int and 0 <= value < tokens):
            raise Malformed(f"its {name} token is not in its vocabulary")
    if "token_embd.weight" not in header.tensors:
        raise Malformed("it has no token_embd.weight")

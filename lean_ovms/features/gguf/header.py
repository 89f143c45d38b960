"""Reads the header of a GGUF file, metadata and list of tensors, and checks it before a network is built.

A crafted file or a broken download may state lengths beyond the end of the file, so every length is checked. A file
that cannot be loaded is refused with the reason. A split file is named by its first part; its header has the metadata
of the first part and the tensors of all parts. This module does not import openvino.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from ...errors import StartError
from ...repository.model_file import parts
from ...types import Json
from ...util.files import open_regular
from .architectures import ARCHITECTURES, ENCODERS, LAYER, SCALINGS, is_known, longest
from .cursor import ENDS, Cursor, Malformed, NotRead, value
from .metadata import UNNEEDED, Metadata, StringArray, says
from .overrides import NO_OVERRIDES, Overrides

GENAI = ("llama", "qwen2", "qwen3")
"""The architectures that openvino-genai 2026.4.1 can load; the only tokenizer that it supports is "gpt2"."""
MMPROJ = "clip"
"""The architecture of files that read images, or hear, for a model."""
TOKENIZERS = ("bert", "gemma4", "gpt2", "llama", "t5")
OPTIONAL = ("blk.0.attn_norm.weight", "blk.0.attn_norm.bias")
"""The tensors that the first layer may lack: ModernBERT's has the norm of the embeddings instead."""
AUDIO = "clip.audio."
"""The beginning of the keys of an encoder of audio, which is not read."""
TEMPLATE = "tokenizer.chat_template"
"""The key of the chat template; the key of a named template continues with its name."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
BLOCK_SIZES = {
    0: (1, 4), 1: (1, 2), 30: (1, 2),  # F32, F16, BF16
    2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 39: (32, 17),  # Q4_0 to Q8_0, MXFP4
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),  # Q2_K to Q6_K
    20: (32, 18), 23: (256, 136),  # IQ4_NL, IQ4_XS
}  # fmt: skip
"""Elements and bytes of a block by tensor type."""
MAX_ENTRIES, MAX_TENSORS, MAX_DIMENSIONS, MAX_LAYERS = 1 << 16, 1 << 20, 4, 512
FIRST_VERSION, LAST_VERSION = 2, 3
DEFAULT_ALIGNMENT, MAX_ALIGNMENT = 32, 1 << 16
MAX_ELEMENTS = (1 << 63) - 1
HEADER_BYTES, BEGINNING_BYTES = 1 << 24, 1 << 16
"""Bytes that are read first of a whole header, and of its beginning alone. Most headers are not longer."""
MOST_BYTES = 1 << 28
"""Bytes of a header at most; the longest ones have a tenth of that. A file with holes may claim any number."""
PULL_AGAIN = "copy the file again, or pull it with --source_model, --gguf_filename and --overwrite_models"
EXPORT = "serve the original model: --source_model ORG/NAME, or optimum-cli export openvino --model ORG/NAME DIRECTORY"


T = TypeVar("T")


class Unsupported(Exception):
    """Raised for a whole GGUF file that this server cannot load."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a GGUF file; of a split file, the header of its first part with the tensors of all parts."""

    metadata: Metadata
    """The metadata: values by key."""
    tensors: dict[str, list[int]]
    """The dimensions of each tensor by its name; the dimension whose index changes fastest comes first."""
    kinds: dict[str, int]
    """The number of each tensor's quantization type by its name."""
    places: dict[str, tuple[int, int]]
    """For each tensor by its name, the number of its part from 0, and the offset of its data in that file."""
    alignment: int
    """The alignment of each tensor's data, in bytes."""

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def unused(self) -> list[str]:
        """The keys of the architecture that nobody has looked up, without those of which the network needs no value."""
        start, keys = f"{self.architecture}.", self.metadata.keys() - self.metadata.used
        found = {key.removeprefix(start): key for key in keys if key.startswith(start) and not key.startswith(AUDIO)}
        if self.real("rope.freq_base_swa", 0.0) == self.real("rope.freq_base", 0.0):
            found.pop("rope.freq_base_swa", None)
        return sorted(name for name in found.keys() - UNNEEDED if says(name, self.metadata[found[name]]))

    def number(self, name: str) -> int:
        """Returns a positive integer of the architecture's metadata, or 0 if it is missing."""
        return self.number_at(f"{self.architecture}.{name}")

    def real(self, name: str, default: float) -> float:
        """Returns a float of the architecture's metadata.

        Args:
            name: The key, without the name of the architecture.
            default: The value if the file has none, or 0, which llama.cpp writes for a value that a network lacks.
        """
        value = self.metadata.get(f"{self.architecture}.{name}")
        return (float(value) if isinstance(value, int | float) else 0.0) or default

    @property
    def scaling(self) -> str:
        """The kind of scaling of RoPE, such as "yarn", or "none"; "linear" if the file does not say it."""
        return str(self.metadata.get(f"{self.architecture}.rope.scaling.type", "linear"))

    @property
    def sections(self) -> list[int]:
        """The numbers of pairs that the time, the row and the column of a token turn; [] if a token has one
        position."""
        found = self.numbers("rope.dimension_sections")
        return found if any(found) else []

    @property
    def layers(self) -> int:
        """The number of layers, without additional ones that only propose draft tokens."""
        return max(self.number("block_count") - self.number("nextn_predict_layers"), 0)

    @property
    def sees_whole_images(self) -> bool:
        """Whether the tokens of an image see each other in both directions. They do not in Gemma 4's small models,
        which have embeddings of tokens for each layer."""
        whole = ARCHITECTURES[self.architecture].whole_images
        return whole and not self.number("embedding_length_per_layer_input")

    def numbers(self, name: str) -> list[int]:
        """Returns a list of integers, one for each layer, or a single one for all layers; [] if the key is missing."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        return [each for each in (value[:MAX_LAYERS] if isinstance(value, list) else [value]) if type(each) is int]

    def number_of(self, name: str, layer: int) -> int:
        """Returns the number of a layer in a list with one for each layer, or the single number of all layers; 0 if the
        key is missing.

        Args:
            name: The key, without the name of the architecture.
            layer: The number of the layer.
        """
        found = self.numbers(name)
        return max(found[layer] if layer < len(found) > 1 else max(found, default=0), 0)

    def reals(self, name: str) -> list[float]:
        """Returns a list of floats, one for each layer; [] if the key is missing."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        return [each for each in value if type(each) is float] if isinstance(value, list) else []

    def real_of(self, name: str, layer: int) -> float:
        """Returns the float of a layer in a list with one for each layer, or the single float of all layers; 0 if the
        key is missing."""
        found = self.reals(name)
        return found[layer] if layer < len(found) else self.real(name, 0.0)

    def number_at(self, key: str) -> int:
        """Returns the positive integer with this key, or 0 if it is missing."""
        value = self.metadata.get(key)
        return value if type(value) is int and value > 0 else 0

    def size(self, name: str) -> int:
        """Returns the size of a tensor in bytes."""
        return _size(self.tensors[name], self.kinds[name])

    @property
    def vocab_size(self) -> int:
        found = self.metadata.get("tokenizer.ggml.tokens")
        return len(found) if isinstance(found, StringArray) else 0

    def strings(self, key: str) -> list[str]:
        """Returns the array of strings with this key, or [] if there is none."""
        found = self.metadata.get(key)
        return found.decoded() if isinstance(found, StringArray) else []

    @property
    def logits_width(self) -> int:
        """The number of rows of the output layer, or of the token embeddings if they are tied."""
        return (self.tensors.get("output.weight") or self.tensors.get("token_embd.weight") or [0])[-1]

    @property
    def user_defined(self) -> frozenset[int]:
        """The ids of user-defined tokens, such as <think>, which are always one token, but are visible text."""
        kinds = self.metadata.get("tokenizer.ggml.token_type")
        return frozenset(i for i, kind in enumerate(kinds) if kind == USER_DEFINED) if kinds else frozenset()

    @property
    def padding(self) -> int:
        """The id of the token for padding; 0 if the vocabulary lacks the one that the file names, or it names none."""
        found = self.number_at("tokenizer.ggml.padding_token_id")
        return found if found < self.vocab_size else 0

    def token(self, name: str) -> str:
        """Returns the text of the special token with this name, such as "eos", or "" if there is none."""
        tokens, place = (self.metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", f"{name}_token_id"))
        if not (isinstance(tokens, StringArray) and type(place) is int and 0 <= place < len(tokens)):
            return ""
        return tokens.text(place)

    @property
    def lost_tokens(self) -> list[str]:
        """The names of special tokens whose ids are not in the vocabulary. They are not used, as in llama.cpp."""
        keys = {name: f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos")}
        ids = {name: self.metadata.get(key) for name, key in keys.items()}
        return [name for name, i in ids.items() if i is not None and not (type(i) is int and 0 <= i < self.vocab_size)]

    def config(self) -> Json:
        """Returns the metadata in the form of a config.json, with the members that `model_config` reads."""
        return {
            "model_type": self.architecture,
            "max_position_embeddings": longest(self.architecture, self.number("context_length")),
            "vocab_size": self.vocab_size,
            "num_hidden_layers": self.number("block_count"),
            "num_attention_heads": max(self.numbers("attention.head_count"), default=0),
            "num_key_value_heads": max(self.numbers("attention.head_count_kv"), default=0),
            "hidden_size": self.number("embedding_length"),
            "head_dim": self.number("attention.key_length"),
            "intermediate_size": max(self.numbers("feed_forward_length"), default=0),
            "pad_token_id": self.padding,
            "layer_types": self._layer_types(),
            "id2label": {str(number): label for number, label in enumerate(self._labels())},
        }

    @property
    def classes(self) -> int:
        """The number of classes of a classifier, which is the number of its last layer's rows; 0 if it is no
        classifier."""
        shape = self.tensors.get("cls.output.weight")
        return 0 if shape is None else math.prod(shape[1:])

    def _labels(self) -> list[str]:
        """Returns the names of a classifier's classes. Names of more classes than the network has are left out."""
        return self.strings(f"{self.architecture}.classifier.output_labels")[: self.classes]

    def _layer_types(self) -> list[str] | None:
        """Returns the type of each layer of a hybrid network by transformers' names, or None if all layers have
        attention."""
        found = [*map(self._layer_type, range(min(self.layers, MAX_LAYERS)))]
        return found if "linear_attention" in found else None

    def _layer_type(self, layer: int) -> str:
        """Returns the type of a layer: it keeps a state, is a feed-forward network alone, or has attention."""
        if any(f"blk.{layer}.{name}.weight" in self.tensors for name in ("shortconv.conv", "ssm_conv1d")):
            return "linear_attention"
        row, attends = ARCHITECTURES.get(self.architecture), f"blk.{layer}.attn_output.weight" in self.tensors
        return "full_attention" if attends or row is None or not row.alternating else "mlp"


def read(path: Path, overrides: Overrides = NO_OVERRIDES) -> Header:
    """Reads and checks the header of a file, of which options may replace values of the metadata.

    Raises StartError with the reason if the file cannot be served.
    """
    files = parts(path)
    header = _of_part(path, 1, len(files))
    overrides.apply(header.metadata)
    for number, file in enumerate(files[1:], 2):
        _join(header, _of_part(file, number, len(files)), file, number - 1)
    with _refusing(path):
        if len(files) > 1 and len(header.tensors) != header.number_at("split.tensors.count"):
            raise Malformed(f"its parts have {len(header.tensors)} tensors")
        _check(header)
        _require_whole(header)
    return header


def read_mmproj(path: Path) -> Header:
    """Returns the header of a file that reads images for a model. Raises StartError for one that does not."""
    header = _of_part(path, 1, 1)
    with _refusing(path):
        if header.architecture != MMPROJ:
            raise Unsupported(
                f"it is a model of the architecture {header.architecture or 'none'}, not an image encoder"
            )
        _check_kinds(header)
    return header


def of_adapter(path: Path) -> Header:
    """Returns the header of a file with an adapter, of which nothing is checked.

    Raises OSError, Malformed and Unsupported.
    """
    return _of_file(path, _parse, BEGINNING_BYTES)


def _of_part(path: Path, number: int, count: int) -> Header:
    with _refusing(path):
        header = _of_file(path, _parse, HEADER_BYTES)
        place = header.metadata.get("split.no", 0), header.metadata.get("split.count", 0)
        if count > 1 and place != (number - 1, count):
            raise Malformed(f"it is not part {number} of {count} parts")
        if count == 1 and header.number_at("split.count") > 1:
            raise Unsupported("it is one part of several; name the first one, NAME-00001-of-0000N.gguf")
        return header


def _join(first: Header, part: Header, path: Path, number: int) -> None:
    """Adds the tensors of a part of a split file to those of its first part.

    Args:
        first: The header of the first part, which is changed.
        part: The header of the other part.
        path: The file of the other part.
        number: The number of the other part, counted from 0.

    Raises:
        StartError: The files are not parts of one model.
    """
    with _refusing(path):
        if part.alignment != first.alignment or first.tensors.keys() & part.tensors.keys():
            raise Malformed("it belongs to another file than the first part")
    first.tensors.update(part.tensors)
    first.kinds.update(part.kinds)
    first.places.update({name: (number, offset) for name, (_, offset) in part.places.items()})


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Converts the errors of reading a file to a StartError with its path."""
    try:
        yield
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}") from error
    except (Malformed, ValueError) as error:  # a ValueError if the number cannot be parsed
        raise StartError(f"{path} is not a complete GGUF file: {error}; {PULL_AGAIN}") from error
    except Unsupported as error:
        raise StartError(f"{path} cannot be served: {error}; {EXPORT}") from error


def beginning(path: Path) -> dict[str, Any]:
    """Returns the metadata before the vocabulary, which is read fast and has the kind of the model.

    Raises OSError, Malformed and Unsupported.
    """

    def parse(cursor: Cursor) -> dict[str, Any]:
        entries = _entries(cursor, _begin(cursor)[1])
        return dict(takewhile(lambda entry: not entry[0].startswith("tokenizer."), entries))

    return _of_file(path, parse, BEGINNING_BYTES)


def parse(data: bytes) -> Header:
    """Returns the header of a file's bytes. Raises Malformed and Unsupported."""
    return _parse(Cursor(data, len(data)))


def _of_file(path: Path, parse: Callable[[Cursor], T], count: int) -> T:
    """Returns what is parsed of the beginning of a file.

    It is read, not mapped: a process that reads what was cut off a mapped file ends, and this may be the server's.

    Args:
        path: The file.
        parse: Parses it.
        count: The bytes that are read at first; more follow as they are needed.

    Raises:
        OSError: The file cannot be read.
        Malformed: It is no GGUF file, or is cut.
    """
    with open_regular(path) as file:
        size, data = os.fstat(file.fileno()).st_size, b""
        while piece := file.read(count - len(data)):
            data += piece
            try:
                return parse(Cursor(data, size))
            except NotRead as error:
                if error.end > MOST_BYTES:
                    raise Malformed(f"it claims a header of more than {MOST_BYTES} bytes") from None
                count = max(error.end, 2 * count)
    raise Malformed(ENDS)


def _parse(cursor: Cursor) -> Header:
    tensors, entries = _begin(cursor)
    metadata = Metadata(_entries(cursor, entries))
    rows = [_tensor(cursor) for _ in range(tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT:
        raise Malformed(f"its alignment is not between 1 and {MAX_ALIGNMENT}")
    start = -(-cursor.position // alignment) * alignment
    for name, shape, kind, offset in rows:
        if start + offset + _size(shape, kind) > cursor.size:
            raise Malformed(f"it ends within the tensor {name}")
    shapes = {name: shape for name, shape, _, _ in rows}
    if len(shapes) < tensors or len(metadata) < entries:
        raise Malformed("it has two values of one name")
    return Header(
        metadata,
        tensors=shapes,
        kinds={name: kind for name, _, kind, _ in rows},
        places={name: (0, start + offset) for name, _, _, offset in rows},
        alignment=alignment,
    )


def _begin(cursor: Cursor) -> tuple[int, int]:
    """Reads the first bytes, and returns the number of tensors and the number of metadata entries.

    Raises Malformed and Unsupported.
    """
    if (first := cursor.read(4)) != b"GGUF":
        pointer = first == b"vers"
        raise Malformed("it is a pointer of Git LFS; run git lfs pull" if pointer else "it does not begin with GGUF")
    version = cursor.number("I")
    if version and not version & 0xFFFF:
        raise Unsupported("its numbers are big-endian; gguf_convert_endian.py of llama.cpp converts it")
    if not FIRST_VERSION <= version <= LAST_VERSION:
        raise Malformed(f"version {version} is not supported")
    tensors, entries = cursor.number("Q"), cursor.number("Q")
    if tensors > MAX_TENSORS or entries > MAX_ENTRIES:
        raise Malformed(f"it claims {entries} entries and {tensors} tensors")
    return tensors, entries


def _entries(cursor: Cursor, count: int) -> Iterator[tuple[str, Any]]:
    for _ in range(count):
        yield cursor.text(), value(cursor, cursor.number("I"))


def _tensor(cursor: Cursor) -> tuple[str, list[int], int, int]:
    name, count = cursor.text(), cursor.number("I")
    if count > MAX_DIMENSIONS:
        raise Malformed(f"the tensor {name} has {count} dimensions")
    shape = [cursor.number("Q") for _ in range(count)]
    return name, shape, cursor.number("I"), cursor.number("Q")


def _size(shape: list[int], kind: int) -> int:
    """Returns the size of a tensor in bytes, or 0 for an unknown type, which `_check` refuses."""
    elements, size = BLOCK_SIZES.get(kind, (1, 0))
    if (count := math.prod(shape)) > MAX_ELEMENTS:
        raise Malformed("a tensor is larger than any file")
    if shape and shape[0] % elements:
        raise Malformed(f"a tensor has rows of {shape[0]} elements in blocks of {elements}")
    return count // elements * size


def _check(header: Header) -> None:
    """Raises Unsupported if no network can be built from the file."""
    architecture, tokenizer = header.architecture, header.metadata.get("tokenizer.ggml.model")
    if header.metadata.get("general.type") == "adapter":
        raise Unsupported("it is a LoRA adapter, to be served beside its model: --lora_modules NAME=FILE")
    if architecture not in ARCHITECTURES | ENCODERS:
        names = ", ".join(sorted(ARCHITECTURES | ENCODERS))
        raise Unsupported(
            f"GGUF files of the architecture {architecture or 'none'} are not supported, only those of {names}"
        )
    if architecture in ENCODERS and (lacking := _lacks_of_classifier(header)):
        raise Unsupported(lacking)
    if header.scaling not in SCALINGS:
        raise Unsupported(
            f"its positions are scaled by {header.scaling}, which is not supported, only {', '.join(SCALINGS[1:])}"
        )
    if unknown := next((name for name in header.tensors if not is_known(architecture, header.layers, name)), ""):
        raise Unsupported(f"the tensor {unknown} belongs to a part of {architecture} networks that is not supported")
    _check_kinds(header)
    if tokenizer not in TOKENIZERS:
        raise Unsupported(
            f"its tokenizer is of the kind {tokenizer or 'none'}, which is not supported, only "
            f"{' or '.join(TOKENIZERS)}"
        )


def _check_kinds(header: Header) -> None:
    """Raises Unsupported for a tensor of an unknown type."""
    if unknown := next((name for name, kind in header.kinds.items() if kind not in BLOCK_SIZES), ""):
        raise Unsupported(f"the tensor {unknown} has the type {header.kinds[unknown]}, which is not supported")


def _lacks_of_classifier(header: Header) -> str:
    """Returns why an encoder's classifier cannot be computed, or "" if it can or if there is none.

    Only RoBERTa's and ModernBERT's classifiers, which have two layers, can be. llama.cpp's converter drops the first
    layer of BERT's, and does not record that DistilBERT's has another activation function.
    """
    found = {name for name in header.tensors if name.startswith("cls.")}
    if not found:
        return ""
    if not found >= {"cls.weight", "cls.output.weight"}:
        return "it has only one of the two layers of its classifier"
    if ENCODERS[header.architecture].early_norms:
        return "" if "cls.norm.weight" in found else "the norm of its classifier is missing"
    return "" if "token_types.weight" in header.tensors else "its classifier does not have the form of RoBERTa's"


def _require_whole(header: Header) -> None:
    """Raises Malformed if the file lacks metadata or tensors, with which OpenVINO would crash."""
    attends = any(name.endswith("attn_output.weight") for name in header.tensors)
    for name in ("block_count", "embedding_length", *(("attention.head_count",) if attends else ())):
        if max(header.numbers(name), default=0) < 1:
            raise Malformed(f"{header.architecture}.{name} is missing")
    if header.number("block_count") > MAX_LAYERS:
        raise Malformed(f"it claims {header.number('block_count')} layers")
    _require_groups(header)
    tokens = header.vocab_size
    kinds = header.metadata.get("tokenizer.ggml.token_type")
    if not tokens or (kinds is not None and (not isinstance(kinds, list) or len(kinds) != tokens)):
        raise Malformed("its vocabulary is incomplete")
    if missing := next((name for name in _expected(header) if name not in header.tensors), ""):
        raise Malformed(f"it has no {missing}")


def _require_groups(header: Header) -> None:
    """Raises Malformed if the heads of a layer are not divided among those of its keys."""
    name = "attention.head_count"
    counts, groups, key = header.numbers(name), header.numbers(f"{name}_kv"), f"{header.architecture}.{name}_kv"
    listed = isinstance(header.metadata.get(key), list)  # layers without attention have 0
    layers = range(max(len(counts), len(groups)))
    each = [[header.number_of(part, layer) for part in (name, f"{name}_kv")] for layer in layers]
    wrong = not groups or min(groups) < (not listed) or any(group and heads % group for heads, group in each)
    if key in header.metadata and wrong and any(counts):
        raise Malformed(f"the number of its heads is not a multiple of {key}")


def _expected(header: Header) -> Iterator[str]:
    """Yields the names of the tensors that a file must have; all layers of one kind have the same ones."""
    yield "token_embd.weight"
    parts: dict[str, set[str]] = {}
    for name in header.tensors:
        if (found := LAYER.fullmatch(name)) is not None:
            parts.setdefault(found[1], set()).add(found[2])
    mixed = any(part.startswith(("shortconv.", "ssm_")) for each in parts.values() for part in each)
    row = ARCHITECTURES.get(header.architecture)
    if header.number("attention.key_length_swa") or mixed or (row is not None and row.alternating):
        return  # its layers are of two kinds; what one lacks is named when the network is built
    dense = header.number("leading_dense_block_count")
    every = max(map(header.number, ("moe_every_n_layers", "interleave_moe_layer_step")))
    count = header.layers if dense else header.number("block_count")
    experts = {layer for layer in range(dense, count) if every < 2 or layer % every == 1}
    for layers in ([layer for layer in range(count) if layer not in experts], sorted(experts)):
        whole = sorted(set[str]().union(*(parts.get(str(layer), ()) for layer in layers)))
        names = (f"blk.{layer}.{part}" for layer in layers for part in whole)
        yield from (name for name in names if name not in OPTIONAL)


def only_paged(header: Header) -> str:
    """Returns why the pipelines of openvino-genai cannot load a file, or "" if they can."""
    if header.number_at("split.count") > 1:
        return "openvino-genai does not load split GGUF files"
    if lost := header.lost_tokens:
        return f"openvino-genai does not load GGUF files whose {lost[0]} token is not in their vocabulary"
    kind = f"{header.architecture} with the tokenizer {header.metadata['tokenizer.ggml.model']}"
    known = [f"{architecture} with the tokenizer gpt2" for architecture in GENAI]
    return "" if kind in known else f"openvino-genai only loads GGUF files of {', '.join(known)}, not of {kind}"

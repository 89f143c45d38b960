"""Responses of pooling models, whose vectors are JSON lists, base64, or raw bytes with a header that describes them.

They follow https://platform.openai.com/docs/api-reference/embeddings, and vLLM for the encodings bytes and bytes_only
and the fields embed_dtype and endianness. Base64 of little-endian float32, which OpenAI's client asks for, is made
straight from the engine's bytes, without a Python number for each value.
"""

from __future__ import annotations

import json as json_module
import sys
from binascii import b2a_base64
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ....api.fields import Field, Values
from ....api.response import json_bytes
from ....errors import BadRequest
from ....types import Json, Response
from ..fields import agreed
from ..types import BITS, INTEGERS, PooledOutput
from .request import PoolingRequest

FORMATS = ("float", "base64", "bytes", "bytes_only")
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes of a number."""
ENDIANNESS = ("native", "little", "big")
NUMBERS = ("float", *INTEGERS)
"""The types of numbers that a request may name."""
LITTLE = ("little", "native") if sys.byteorder == "little" else ("little",)
"""Names of the byte order in which the engine's numbers are."""
ENTRY_BYTES = 64
"""Bytes of a score in a response, without its text."""
AT_ONCE = 3 << 16
"""Bytes that are written as base64 in one call, for 1 ms of which it holds the interpreter's lock; a multiple of 3."""
MAX_METADATA = 60_000
"""Bytes of the header of `bytes`: clients take 64 KiB at most, many only 8."""


def _choice(name: str, choices: Sequence[str], help: str, default: str) -> Field:  # noqa: A002 - as in Field
    wrong = f"{name} must be one of: {', '.join(choices)}"
    return Field(name, "string", help, default=default, wrong=wrong, choices=choices)


ENCODING = (
    _choice(
        "encoding_format",
        FORMATS,
        "form of the vectors: float, base64, or vLLM's raw bytes: bytes, bytes_only",
        "float",
    ),
    _choice("embed_dtype", list(DTYPES), "(vLLM) type of the numbers in base64 and bytes", "float32"),
    _choice("endianness", ENDIANNESS, "(vLLM) byte order of the numbers in base64 and bytes", "native"),
)


def _embedding_type(value: Any) -> str:
    found = value[0] if isinstance(value, list) and len(value) == 1 else value
    if found not in (*NUMBERS, "base64"):
        known = ", ".join((*NUMBERS, "base64"))
        raise BadRequest(f"embedding_type must be one of: {known}", param="embedding_type")
    return str(found)


NUMBER_TYPES = (
    Field("output_dtype", "string", f"(Voyage, Mistral) type of the numbers: {', '.join(NUMBERS)}", choices=NUMBERS),
    Field("embedding_type", "any", "(Jina) another name of output_dtype, or base64", read=_embedding_type,
        schema={"enum": [*NUMBERS, "base64"]}),
)  # fmt: skip
"""Fields that quantize vectors, as Cohere's embedding_types does."""


@dataclass(slots=True)
class Encoding:
    """The form of the vectors in a response: the values of ENCODING and of NUMBER_TYPES. It is never changed."""

    format: str
    """The value of encoding_format: "float", "base64", "bytes" or "bytes_only"."""
    dtype: str
    """The type of the numbers: "float32", one of DTYPES in base64 and in bytes, or one of NUMBERS in any form."""
    endianness: str
    """The byte order of the numbers in base64 and in bytes."""
    per_token: bool = False
    """Whether each result is a matrix with a row for each token, instead of one vector."""

    @classmethod
    def of(cls, values: Values, *, per_token: bool = False) -> Encoding:
        """Makes the encoding that a request's fields name. Raises BadRequest if they exclude each other."""
        form, dtype = values["encoding_format"], values["embed_dtype"]
        if form == "float" and dtype != "float32":
            raise BadRequest("embed_dtype needs an encoding_format of base64, bytes or bytes_only", param="embed_dtype")
        if values.get("embedding_type") == "base64":
            form, values = "base64", {**values, "embedding_type": None}
        numbers = agreed(values, "output_dtype", "embedding_type")
        if numbers in INTEGERS:
            if dtype != "float32":
                raise BadRequest(f"embed_dtype cannot be used together with {numbers} vectors", param="embed_dtype")
            dtype = numbers
        return cls(form, dtype, values["endianness"], per_token)

    @property
    def raw(self) -> bool:
        """Whether the response is bytes instead of JSON."""
        return self.format.startswith("bytes")

    @property
    def needs_numpy(self) -> bool:
        """Whether numpy must convert the numbers; float32 as base64 or bytes is sent as the engine returned it."""
        return self.format == "float" or self.dtype != "float32" or self.endianness not in LITTLE

    def shape(self, output: PooledOutput) -> tuple[int, ...]:
        """Returns the shape of one result: (width,) or, with one row per token, (rows, width)."""
        if self.dtype in BITS:
            return (output.width // 8,)
        return (output.rows, output.width) if self.per_token else (output.rows * output.width,)

    def packed(self, output: PooledOutput) -> bytes:
        """Returns the numbers of one result as bytes of this encoding's type and byte order."""
        if self.dtype == "float32" and self.endianness in LITTLE:
            return output.data
        from .. import vectors

        return vectors.packed(output.data, self.dtype, big_endian=self.endianness not in LITTLE)

    def json(self, output: PooledOutput) -> bytes:
        """Returns the JSON value of one result: nested lists, or a base64 string."""
        if self.format == "base64":
            data = memoryview(self.packed(output))
            pieces = (b2a_base64(data[at : at + AT_ONCE], newline=False) for at in range(0, len(data), AT_ONCE))
            return b'"%b"' % b"".join(pieces)
        from .. import vectors

        if self.dtype in INTEGERS:
            return vectors.integers_json(output.data, self.dtype)
        return vectors.json(output.data, self.shape(output))


def check_bits(types: Collection[str], size: int, param: str) -> None:
    """Raises BadRequest if one of the types of numbers has eight values in a byte, and the size is not whole bytes."""
    if size % 8 and not set(BITS).isdisjoint(types):
        raise BadRequest(
            f"Embedding dimension must be a multiple of 8 for binary embedding types, but got {size}.", param=param
        )


FLOATS = Encoding("float", "float32", "native")
"""The encoding of endpoints whose requests cannot choose."""
FLOATS_OF_TOKENS = Encoding("float", "float32", "native", per_token=True)
"""The same for results that are matrices with a row for each token."""


def results_response(
    call: PoolingRequest,
    encoding: Encoding,
    outputs: Sequence[PooledOutput],
    *,
    prefix: str,
    kind: bytes,
    member: bytes,
) -> Response:
    """Returns the response with the results: a JSON list, or the bytes of all results, as vLLM sends them.

    With encoding_format bytes, the header `metadata` gives the offset, the type and the shape of each vector in these
    bytes.

    Args:
        call: The request.
        encoding: How the vectors are written.
        outputs: The results.
        prefix: The prefix of the response's id.
        kind: The value of the member `object` of a result in JSON.
        member: The name of the member that has the vector of a result in JSON.

    Raises:
        BadRequest: The header `metadata` is too long.
    """
    envelope, headers = call.envelope(prefix), call.headers
    counts = usage(sum([output.tokens for output in outputs]))
    if encoding.raw:
        parts = [encoding.packed(output) for output in outputs]
        headers = [("Content-Type", "application/octet-stream"), *headers]
        if encoding.format == "bytes":
            headers.append(("metadata", _metadata(encoding, outputs, parts, envelope, counts)))
        return Response(200, headers, b"".join(parts))
    items = [
        b'{"index":%d,"object":"%b","%b":%b}' % (index, kind, member, encoding.json(output))
        for index, output in enumerate(outputs)
    ]
    return json_list(envelope, items, counts, headers)


def _metadata(
    encoding: Encoding, outputs: Sequence[PooledOutput], parts: list[bytes], envelope: Json, counts: Json
) -> str:
    items, start = [], 0
    for index, (output, part) in enumerate(zip(outputs, parts, strict=True)):
        items.append(
            {
                "index": index,
                "embed_dtype": encoding.dtype,
                "endianness": encoding.endianness,
                "start": start,
                "end": start + len(part),
                "shape": encoding.shape(output),
            }
        )
        start += len(part)
    # ASCII with escapes: the model's name may have any characters, and headers are latin-1.
    text = json_module.dumps({**envelope, "data": items, "usage": counts}, separators=(",", ":"))
    if len(text) > MAX_METADATA:
        text = (
            f"the results of {len(outputs)} inputs do not fit into the metadata header; use encoding_format bytes_only"
        )
        raise BadRequest(text, param="encoding_format")
    return text


def usage(prompt_tokens: int) -> Json:
    """Returns the usage object of a request that generates no tokens."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }


def json_list(envelope: Json, items: Iterable[bytes], counts: Json, headers: list[tuple[str, str]]) -> Response:
    """Returns the response {"id", "object": "list", "created", "model", "data", "usage"} for items of JSON text."""
    head = orjson.dumps({"id": envelope["id"], "object": "list", **envelope})
    parts = [head[:-1], b',"data":']
    for item in items:  # copies long vectors once instead of twice
        parts += (b",", item)
    parts[2:3] = [b"["]
    body = b"".join((*parts, b'],"usage":', orjson.dumps(counts), b"}"))
    return json_bytes(body, headers)


def bare_list(items: Iterable[bytes], headers: list[tuple[str, str]]) -> Response:
    """Returns a response whose body is the list of the items, which are JSON texts, without an object around it."""
    return json_bytes(b"[%b]" % b",".join(items), headers)


def shortest(value: float) -> float:
    """Rounds a score to seven significant digits, the precision of float32."""
    return float(f"{value:.7g}")

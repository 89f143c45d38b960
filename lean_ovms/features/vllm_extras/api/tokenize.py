"""POST …/tokenize and …/detokenize: convert text to token ids and back.

One endpoint accepts four bodies: OVMS's (`text`: {"tokens": [...]}), vLLM's (`prompt` or `messages`: {"tokens",
"count", "max_model_len", "token_strs"}), llama.cpp's (`content`: {"tokens": [...]}), and text-embeddings-inference's
(`inputs`: a list for each text). It is also served without a prefix, as in these. The text in a response to detokenize
has both vLLM's and llama.cpp's name.

GET /tokenizer_info: information for clients that build prompts themselves, as in vLLM. With it lm-evaluation-harness
needs no local tokenizer (tokenizer_backend=remote).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ....api.fields import UINT32_MAX, Field, FieldSet, RouteDoc, Values, read, whole
from ....api.generation.common_fields import MESSAGES, MODEL, OF_TEMPLATE
from ....api.generation.sampling import token_ids
from ....api.queries import read_query
from ....api.response import json, model_name, written
from ....api.schemas import TEXT_MESSAGES, TEXTS, TOKENS, all_of
from ....api.services import Services
from ....errors import BadRequest
from ....models.text_model import TextModel, TokenModel
from ....types import ChatPrompt, Json, Request, Response, TextPrompt
from ....types.engine import Vocabulary
from ....util.chunked_json import serialized
from ...chat.request import text_conversation
from ...chat.tools import read_tools
from ...completions.prompt_pieces import INLINE_CUT, MIXED, Pieces, TextCutter, read_one, special_texts, tokens_of
from . import token_places

SOURCES = ("text", "prompt", "messages", "content", "inputs")
"""The fields for the text to tokenize, of which a request has exactly one."""
MAX_TEXTS = 2048
MAX_PADDED = 1 << 20
"""The most tokens of all texts together after padding."""
ID_BYTES = 16
"""The approximate size in bytes of a token id in the response, together with its text."""
PLACED_BYTES = 80
"""The same with the places of its text, as text-embeddings-inference returns them."""
NO_IMAGES = "prompts with images have no token ids; responses/input_tokens counts their tokens"


def _max_length(value: Any) -> int:
    value = whole(value)
    if type(value) is not int or value < 0 or value > UINT32_MAX:
        raise BadRequest("max_length should be unsigned integer", param="max_length")
    if value == 0:
        raise BadRequest("max_length should be greater than 0", param="max_length")
    return value


FIELDS = FieldSet((
    MODEL,
    Field("text", "any", "(OVMS) text or array of texts to tokenize", schema=TEXTS),
    Field("max_length", "any", "(OVMS) maximum number of tokens; the rest of a text is cut", read=_max_length,
        schema={"type": "integer", "minimum": 1, "maximum": UINT32_MAX}),
    Field("pad_to_max_length", "bool", "(OVMS) pad texts to max_length tokens",
        wrong="pad_to_max_length should be boolean", default=False),
    Field("padding_side", "string", "(OVMS) side of the padding, left or right", default="right",
        choices=("left", "right"), wrong="padding_side should be string, either left or right",
        outside="padding_side should be either left or right"),
    Field("add_special_tokens", "bool",
        "let the tokenizer add special tokens such as BOS (default true; false for messages)",
        wrong="add_special_tokens should be boolean"),
    Field("prompt", "string", "(vLLM) text to tokenize"),
    replace(MESSAGES, schema=TEXT_MESSAGES),
    *OF_TEMPLATE,
    Field("return_token_strs", "bool", "(vLLM) also return the text of each token", default=False),
    Field("content", "any", "(llama.cpp) text to tokenize, or an array of texts and token ids", schema=MIXED),
    Field("add_special", "bool",
        "(llama.cpp) let the tokenizer add special tokens such as BOS to content", default=False),
    Field("parse_special", "bool", "(llama.cpp) read the texts of special tokens in content as these tokens",
        default=True),
    Field("with_pieces", "bool", "(llama.cpp) return the id and the text of each token", default=False),
    Field("inputs", "any", "(text-embeddings-inference) text or array of texts to tokenize", schema=TEXTS),
))  # fmt: skip
DETOKENIZE_FIELDS = FieldSet((
    MODEL,
    Field("tokens", "array", "token ids", required=True, schema=TOKENS),
    Field("skip_special_tokens", "bool", "leave out special tokens", default=False),
))  # fmt: skip

QUERY = FieldSet((MODEL,))


def _model(values: Values, services: Services) -> TokenModel:
    named = values["model"] or services.registry.default_of(TextModel)
    model = services.registry.get(named or model_name(values))
    model.serving()
    return model if isinstance(model, TokenModel) else model.require_task(TextModel)


@RouteDoc("Turn a text into token ids", body=FIELDS, rules={"oneOf": [all_of(name) for name in SOURCES]})
async def handle(request: Request, services: Services) -> Response:
    values, conversation = await services.parse_body(request, _read)
    model = _model(values, services)
    source = next((name for name in SOURCES if values[name] is not None), "")
    if not source:
        raise BadRequest("text field is required", param="text")
    try:
        if source == "text":
            return await _answer(await _ovms(values, model), services)
        if source == "content":
            return await _llama_cpp(values, model, services)
        if source == "inputs":
            return await _tei(values, model, services)
        body = await _vllm(values, conversation, model)
        return await _answer(body, services, model.token_strings if values["return_token_strs"] else None)
    except BadRequest as error:  # such as that of a text that is too long
        error.param = error.param or source
        raise


async def _answer(body: Json, services: Services, strings: Callable[[list[int]], list[str]] | None = None) -> Response:
    """Returns the response. A large one is serialized in a thread.

    In the event loop a million token ids would take 14 ms, and their strings 2 s.

    Args:
        body: The members of the response, with `tokens`.
        services: The services of the server.
        strings: Returns the texts of token ids for the member `token_strs`; None to omit the member.
    """
    tokens = body["tokens"]

    def work() -> Json:
        return body if strings is None else {**body, "token_strs": strings(tokens)}

    count = sum(map(len, tokens)) if tokens and isinstance(tokens[0], list) else len(tokens)
    return await written(services.offload, ID_BYTES * count, work)


@RouteDoc("Turn token ids into a text", body=DETOKENIZE_FIELDS)
async def handle_detokenize(request: Request, services: Services) -> Response:
    values = await services.parse_body(request, _tokens)
    model = _model(values, services)
    tokens: list[int] = values["tokens"]
    text = await model.decode(tokens, values["skip_special_tokens"]) if tokens else ""
    return await written(services.offload, 2 * len(text), lambda: {"prompt": text, "content": text})


def _read(body: Json, services: Services) -> tuple[Values, ChatPrompt | None]:
    """Parses a body; returns the values of the fields, and the conversation if there is one."""
    values: Values = read(FIELDS, body)
    given = [name for name in SOURCES if values[name] is not None]
    if len(given) > 1:
        raise BadRequest(f"{given[0]} and {given[1]} cannot be used together", param=given[1])
    if values["content"] is not None:
        content = values["content"]
        values = {**values, "content": read_one(content, "content") if content not in ("", []) else []}
    if values["messages"] is None:
        read_tools(values["tools"], None)  # checked as with messages, though a text does not use them
        _model(values, services)
        return values, None
    _model(values, services)
    return values, text_conversation(
        values, NO_IMAGES, services.config.composition, add_special_tokens=bool(values["add_special_tokens"])
    )


def _tokens(body: Json, services: Services) -> Values:
    values = read(DETOKENIZE_FIELDS, body)
    _model(values, services)
    if values["tokens"] is None:
        raise BadRequest("tokens field is required", param="tokens")
    token_ids(values["tokens"], "tokens")
    return values


async def _ovms(values: Values, model: TokenModel) -> Json:
    texts = _texts(values["text"], "text")
    length, side = values["max_length"], values["padding_side"]
    special = values["add_special_tokens"] is not False and not model.joins_texts  # OVMS adds none for rerankers here
    tokens = await model.encode(texts, special)
    if length is not None and not isinstance(model, TextModel) and special and max(map(len, tokens)) > length:
        tokens = [_cut(*both, length) for both in zip(tokens, await model.encode(texts, False), strict=True)]
    elif length is not None:
        tokens = [ids[:length] for ids in tokens]
    if values["pad_to_max_length"]:
        length = length or model.info.context_length
        if length * len(tokens) > MAX_PADDED:
            raise BadRequest(f"max_length pads the texts to more than {MAX_PADDED} tokens", param="max_length")
        tokens = _pad(tokens, length, side, model.info.pad_token_id)
    return {"tokens": tokens[0] if len(tokens) == 1 else tokens}


def _cut(tokens: list[int], plain: list[int], length: int) -> list[int]:
    """Cuts the tokens of a text to a length; keeps the special tokens around the text if there is room for them.

    Args:
        tokens: The ids of the text, with special tokens around them.
        plain: The ids of the text alone, which are a part of `tokens`.
        length: The most tokens.
    """
    around = len(tokens) - len(plain)
    if len(tokens) <= length or length <= around:
        return tokens[:length]
    before = next((i for i in range(around + 1) if tokens[i : i + len(plain)] == plain), around)
    return [*tokens[:before], *plain[: length - around], *tokens[before + len(plain) :]]


def _texts(text: Any, name: str) -> list[str]:
    if isinstance(text, str):
        return [text]
    if not isinstance(text, list):
        raise BadRequest(f"{name} should be string, array of strings or array of integers", param=name)
    if not text:
        raise BadRequest(f"{name} array should not be empty", param=name)
    if len(text) > MAX_TEXTS:
        raise BadRequest(f"{name} array should have no more than {MAX_TEXTS} elements", param=name)
    kinds = {type(t) for t in text}
    if kinds == {str}:
        return text
    if not kinds <= {str, int}:
        raise BadRequest(f"every element in {name} array should be either string or int", param=name)
    mixed = len(kinds) > 1
    raise BadRequest(
        f"{name} must be homogeneous" if mixed else "Input should be string or array of strings", param=name
    )


def _pad(tokens: list[list[int]], length: int, side: str, pad: int) -> list[list[int]]:
    fills = [[pad] * (length - len(ids)) for ids in tokens]
    return [fill + ids if side == "left" else ids + fill for ids, fill in zip(tokens, fills, strict=True)]


async def _vllm(values: Values, conversation: ChatPrompt | None, model: TokenModel) -> Json:
    tokens = await model.token_ids(
        conversation or TextPrompt(values["prompt"], values["add_special_tokens"] is not False)
    )
    return {"count": len(tokens), "max_model_len": model.info.context_length, "tokens": tokens, "token_strs": None}


async def _llama_cpp(values: Values, model: TokenModel, services: Services) -> Response:
    """Returns llama.cpp's response: token ids, or objects with id and piece.

    A piece that is a part of a character is given as bytes.
    """
    pieces: Pieces = values["content"]
    special: bool = values["add_special"]
    if not values["parse_special"]:
        size = sum(len(piece) for piece in pieces if isinstance(piece, str))
        cut_texts = partial(_cut_pieces, pieces, model.vocabulary)
        pieces = await services.offload.run(size, cut_texts, inline_below=INLINE_CUT)
    tokens = await tokens_of(pieces, special, model.encode) if pieces else []
    if not values["with_pieces"]:
        return await _answer({"tokens": tokens}, services)

    def work() -> Json:
        texts = model.token_bytes(tokens)
        return {"tokens": serialized({"id": i, "piece": _piece(data)} for i, data in zip(tokens, texts, strict=True))}

    return await written(services.offload, ID_BYTES * len(tokens), work)


def _cut_pieces(pieces: Pieces, vocabulary: Vocabulary) -> Pieces:
    """Returns the pieces of a prompt with their texts cut where they have that of a special token."""
    cutter = TextCutter(special_texts(vocabulary))
    return [part for one in pieces for part in (cutter.cut(one, MAX_TEXTS) if isinstance(one, str) else [one])]


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def _tei(values: Values, model: TokenModel, services: Services) -> Response:
    """Returns the response of text-embeddings-inference: the tokens of each text, with their places in it."""
    texts = _texts(values["inputs"], "inputs")
    tokens = await model.encode(texts, values["add_special_tokens"] is not False)
    special = model.serving().vocabulary.special

    def work() -> list[Any]:
        return [
            serialized(token_places.placed(text, zip(ids, model.token_bytes(ids), strict=True), special))
            for text, ids in zip(texts, tokens, strict=True)
        ]

    return await written(services.offload, PLACED_BYTES * sum(map(len, tokens)), work)


@RouteDoc("Chat template and special tokens", query=QUERY, errors=(404, 503))
async def handle_info(request: Request, services: Services) -> Response:
    query = read_query(QUERY, request.query)
    model = await services.when_known(lambda: services.named_model(query, TextModel))
    template = model.chat_format.template
    tokens = {name: text for name, text in template.special_tokens.items() if text}
    known = {**model.directory.tokenizer, **tokens}
    return json({**known, "chat_template": template.source or None, "model_max_length": model.info.context_length})

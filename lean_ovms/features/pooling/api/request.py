"""A request to a pooling model: reading its fields and inputs, computing them, and rendering the response.

Every endpoint takes the same steps: `parse` the body, make the `params`, `encode` the inputs, `render` the response.
This module knows no field that only one endpoint has.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ....api.fields import FieldSet, Values, read
from ....api.generation import common_fields
from ....api.response import new_id, now, warning_headers
from ....api.services import Services
from ....composition import Composition
from ....errors import BadRequest
from ....types import ChatPrompt, Json, Response
from ...chat.content import PLACE, Reads, load_media, refuse_media
from ...chat.request import chat_prompt, read_messages
from .. import fields as shared
from ..feature import PoolingOptions
from ..model import PoolingModel
from ..types import (
    ASSUMED_PROMPT,
    CLASSIFY,
    IMAGES_ALONE,
    PER_TOKEN,
    SCORE,
    VECTORS,
    PooledOutput,
    PoolingInfo,
    PoolingInput,
    PoolingParams,
    TextOrTokens,
    TextWithImages,
)
from .inputs import check_count, conversations, is_conversation, read_inputs, with_texts

RENDERED_AT_ONCE = 16
"""Conversations rendered before other requests have their turn: about 1 ms."""
INLINE_RESULT = 1 << 17
"""Bytes of results that are written on the event loop: 1 ms."""
QUERY, DOCUMENT = ("query", "search_query"), ("document", "passage", "corpus", "search_document")
"""The names that models and clients (sentence-transformers, Cohere, Voyage, NVIDIA) have for the two sides of a search.
The prompt of one goes by any of its names, and there may be none, as in sentence-transformers' encode_document."""
PROMPT_FIELDS = ("prompt_name", "input_type", "jina_task")
"""The values that name a prompt; the first one that is set counts. The last is the field `task` of /embeddings."""
OTHER_INPUT_TYPES = ("classification", "clustering", "image")
"""Values of input_type at Cohere that name no side of a search. Its client always sends a value, so a model without
prompts accepts these, too."""


@dataclass(slots=True, kw_only=True)
class PoolingRequest:
    """A parsed request to a pooling model: its fields and its model. Only warnings are added to it."""

    values: Values
    """The value of every field, by name; those that were not sent have their defaults."""
    model: PoolingModel
    """The model that the body names."""
    services: Services
    """The options and the state of the server."""
    warnings: list[str]
    """The warnings about the body, for the response."""

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The Warning headers of the response; one of them says if the pooling of the model is only assumed."""
        info = self.model.own_pooling if self.model.known else None
        if info is not None and info.prompt_assumed and not self.model.config.chat_template:
            return warning_headers([*self.warnings, f"pairs are scored with {ASSUMED_PROMPT} (--chat_template)"])
        if info is None or not info.pooling_assumed:
            return warning_headers(self.warnings)
        text = (
            f"the model's files do not say how vectors are pooled; the server assumes {info.pooling}, which may be "
            "wrong (--pooling)"
        )
        return warning_headers([*self.warnings, text])

    def with_values(self, renamed: Json) -> PoolingRequest:
        """Returns a copy of the request with other values for the given fields."""
        return replace(self, values={**self.values, **renamed})

    def info(self, kinds: tuple[str, ...]) -> PoolingInfo:
        """Returns the description of the model. Raises RequestError if the model is not of one of these kinds."""
        return self.model.require_kind(*kinds).own_pooling

    def params(self, info: PoolingInfo, **more: Any) -> PoolingParams:
        """Returns the parameters of encoding that the fields set; `more` overrides them. Raises BadRequest."""
        values = self.values
        wanted, truncate = shared.activation(values), values["truncate_prompt_tokens"]
        if truncate is not None and truncate > info.window:
            raise BadRequest(
                "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller truncation size.",
                param="truncate_prompt_tokens",
            )
        if truncate == 0:
            raise BadRequest("truncate_prompt_tokens must be -1 or at least 1", param="truncate_prompt_tokens")
        if more.get("output") == PER_TOKEN and not info.has_token_vectors:
            raise BadRequest("This model has no vectors of tokens", param="model", code="wrong_task")
        unpooled = "" if info.pools_prompts else prompt_text(values, info)
        if unpooled and values["truncation_side"] == "left":
            text = "this model leaves the prompt's tokens out of its vectors, and cannot truncate texts at the left"
            raise BadRequest(text, param="truncation_side")
        given: Json = {
            "normalize": wanted,
            "activation": wanted is not False,
            "truncate": -1 if truncate is None and info.kind in VECTORS and self.model.options.truncate else truncate,
            "truncation_side": values["truncation_side"],
            "unpooled": unpooled,
            "priority": values["priority"],
        }
        return PoolingParams(**{**given, **more})

    async def encode(
        self, inputs: Sequence[PoolingInput], params: PoolingParams, param: str, numbers: Sequence[int] = ()
    ) -> list[PooledOutput]:
        """Returns the result of each input, in the order of the inputs.

        Args:
            inputs: The inputs.
            params: How the inputs are encoded.
            param: The field that has the inputs, for errors.
            numbers: The index in that field of each input; () if the field has just these inputs.

        Raises:
            RequestError: The model refuses an input, or fails.
        """
        try:
            return await self.model.pool(inputs, params)
        except BadRequest as error:
            if error.param is not None and error.param.startswith("["):
                at = int(error.param[1:-1])
                several = len(inputs) > 1 or numbers
                error.param = f"{param}[{numbers[at] if numbers else at}]" if several else param
            error.param = error.param or param
            raise

    def envelope(self, prefix: str) -> Json:
        """Returns the members id, created and model of the response, with an id of this prefix."""
        return {"id": new_id(prefix, self.values["request_id"]), "created": now(), "model": self.model.name}

    async def load_numpy(self) -> None:
        """Imports numpy in a thread, since the first import takes 0.1 s, which would block the event loop."""
        if "numpy" not in sys.modules:
            await self.services.offload.run(0, lambda: importlib.import_module("numpy"))

    async def render(
        self, outputs: Sequence[PooledOutput], work: Callable[[], Response], *, numpy: bool = True
    ) -> Response:
        """Returns the response that `work` writes, in the offload thread if the outputs are large.

        Args:
            outputs: The outputs, whose size decides where `work` runs.
            work: Writes the response.
            numpy: Whether `work` needs numpy, which is then imported first.

        Returns:
            What `work` returns.
        """
        if numpy:
            await self.load_numpy()
        size = sum([len(output.data) for output in outputs])
        return work() if size < INLINE_RESULT else await self.services.offload.run(size, work)


def parse(body: Json, services: Services, *, fields: FieldSet) -> PoolingRequest:
    """Reads the fields of a body and finds its model. Raises RequestError."""
    values = read(fields, body)
    model = services.named_model(values, PoolingModel)
    kept = model.keep_loaded(values.get("keep_alive"))
    padded = values.get("padding") == "max_length"
    padding = ["padding has no effect on this model's results"] if padded else []
    return PoolingRequest(
        values=values, model=model, services=services, warnings=padding + common_fields.warnings(fields, body) + kept
    )


# --- inputs that are computed one by one


@dataclass(slots=True, kw_only=True)
class Inputs:
    """The inputs of a request: texts and token ids, or conversations. It is never changed."""

    items: Sequence[TextOrTokens] = ()
    """Inputs that are texts or token ids."""
    param: str = "input"
    """The field that has the inputs, for errors."""
    prompts: list[ChatPrompt] = field(default_factory=list)
    """Inputs that are conversations, which the model's template renders as texts."""
    special: bool | None = None
    """The value of add_special_tokens; None if the request does not set it."""
    places: Sequence[str] = ()
    """The path of each conversation in the body, by which errors name the place of an image."""

    def adds_special(self, info: PoolingInfo) -> bool:
        """Returns whether the tokenizer adds special tokens: by default to texts, but not to rendered conversations."""
        usual = not self.prompts or info.images == IMAGES_ALONE
        return usual if self.special is None else self.special


def parse_with_inputs(body: Json, services: Services, *, fields: FieldSet) -> tuple[PoolingRequest, Inputs]:
    """Reads the body of an endpoint that computes each input alone: request and inputs. Raises RequestError."""
    call = parse(body, services, fields=fields)
    return call, _inputs(call.values, services)


def _inputs(values: Values, services: Services) -> Inputs:
    """Reads the inputs from the field `input` or `messages`. Raises BadRequest."""
    most = services.config.of(PoolingOptions).max_pooling_inputs
    value, messages, special = with_texts(values["input"], "input"), values["messages"], values["add_special_tokens"]
    if value is not None and messages is not None:
        raise BadRequest("input and messages cannot be used together", param="messages")
    if messages is None and not is_conversation(value):
        return Inputs(items=read_inputs(value, most), special=special)
    name, given = ("input", value) if messages is None else ("messages", messages)
    several = conversations(given) if is_conversation(given) else [given]
    check_count(len(several), most, name)
    paths = [f"{name}[{at}]" for at in range(len(several))] if several is given else [name]
    base, composition = chat_prompt(values, [], []), services.config.composition
    return Inputs(
        param=name,
        prompts=[
            base.with_messages(read_conversation(one, composition, path))
            for one, path in zip(several, paths, strict=True)
        ],
        special=special,
        places=[PLACE.replace("messages", path) for path in paths],
    )


def read_conversation(messages: Any, composition: Composition, path: str, within: str = "messages") -> list[Json]:
    """Reads the messages of a conversation.

    Args:
        messages: The messages as JSON.
        composition: The features, which read content other than text.
        path: The path of the conversation in the body, by which errors name the field.
        within: The part of a field's name that the path replaces.

    Raises:
        BadRequest: The messages are not valid.
    """
    try:
        return read_messages(messages, composition)
    except BadRequest as error:
        error.param = path + (error.param or "").removeprefix(within)
        raise


async def items_of(request: PoolingRequest, inputs: Inputs, info: PoolingInfo) -> list[PoolingInput]:
    """Returns each input as a text, perhaps with images, or token ids, after the prompt that the request names."""
    items: list[PoolingInput] = [*inputs.items]
    if inputs.prompts:
        prompts = await _with_images(request, inputs, info)
        texts = await rendered(request, prompts)
        items = [
            TextWithImages(text, prompt.images) if prompt.images else text
            for text, prompt in zip(texts, prompts, strict=True)
        ]
    prefix = prompt_text(request.values, info)
    if prefix:
        if any(isinstance(item, list) for item in items):
            raise BadRequest("a prompt can only be put before texts, not before token ids", param=inputs.param)
        items = [
            replace(item, text=prefix + item.text) if isinstance(item, TextWithImages) else f"{prefix}{item}"
            for item in items
        ]
    return items


async def _with_images(request: PoolingRequest, inputs: Inputs, info: PoolingInfo) -> list[ChatPrompt]:
    """Returns the conversations with their images loaded. Raises RequestError."""
    if info.images:
        serving = request.model.serving().info
        reads = Reads(serving.image_tokens, serving.context_length)
        return await load_media(inputs.prompts, inputs.places, reads, request.services)
    for prompt, place in zip(inputs.prompts, inputs.places, strict=True):
        refuse_media(prompt.messages, "this model reads text only", request.services.config.composition, place)
    return inputs.prompts


async def rendered(request: PoolingRequest, prompts: Iterable[ChatPrompt]) -> list[str]:
    """Returns the text of each prompt, rendered by the model's template. Raises RequestError.

    Rendering stops as soon as the texts are longer than a request may be: each of them may repeat a long query or a
    tool. A generator of prompts saves memory, as only one exists at a time.
    """
    texts: list[str] = []
    total = 0
    for number, prompt in enumerate(prompts):
        texts.append(await request.model.render(prompt))
        total += len(texts[-1])
        request.model.check_total(total)
        if number % RENDERED_AT_ONCE == 0:
            await asyncio.sleep(0)  # lets others run, because short conversations are rendered on the event loop
    return texts


def prompt_text(values: Values, info: PoolingInfo) -> str:
    """Returns the text of the prompt that a field of PROMPT_FIELDS names; "" without them. Raises BadRequest."""
    field_name = next((one for one in PROMPT_FIELDS if values.get(one) is not None), "")
    if not field_name:
        return ""
    name = values[field_name]
    if name in info.prompts:
        return info.prompts[name]
    if field_name == "input_type":
        side = next((names for names in (QUERY, DOCUMENT) if name in names), ())
        if side or (not info.prompts and name in OTHER_INPUT_TYPES):
            return next((info.prompts[other] for other in side if other in info.prompts), "")
    known = f"Supported values: {', '.join(info.prompts)}" if info.prompts else "This model does not define any."
    shown = field_name.removeprefix("jina_")
    raise BadRequest(f"Unsupported {shown} {name[:80]!r}. {known}", param=shown)


def dimensions(value: int | None, request: PoolingRequest, info: PoolingInfo, name: str = "dimensions") -> int | None:
    """Returns the number of dimensions of the vectors, or None for all. Raises BadRequest with vLLM's texts."""
    if value is None or value == info.dimensions:
        return None
    start = f"Model {request.model.name!r}"
    if not info.matryoshka:
        problem = f"does not support Matryoshka embeddings; dimensions must be unset (received dimensions={value})."
    elif info.matryoshka_dimensions and value not in info.matryoshka_dimensions:
        problem = f"only supports Matryoshka dimensions {info.matryoshka_dimensions}, got {value}."
    elif value > info.dimensions:
        problem = f"only supports dimensions in range [1, {info.dimensions}], got {value}."
    else:
        return value
    raise BadRequest(f"{start} {problem}", param=name)


async def classified(call: PoolingRequest, inputs: Inputs) -> tuple[PoolingInfo, list[PooledOutput]]:
    """Returns the description of the model, and the probabilities of its labels for each input. Raises RequestError."""
    info = call.info((CLASSIFY, SCORE))
    if info.kind == SCORE and info.outputs > 1:  # only the score of the second class is known
        call.info((CLASSIFY,))
    params = call.params(info, add_special_tokens=inputs.adds_special(info))
    return info, await call.encode(await items_of(call, inputs, info), params, inputs.param)

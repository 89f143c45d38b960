"""POST /inference/v1/generate: vLLM's API with token ids as input and output.

https://docs.vllm.ai/en/stable/serving/online_serving/token_in_token_out/. Its bodies are what the render endpoints
return (render.py). The defaults of sampling parameters are those of completions, not those of vLLM's SamplingParams.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....api import sse
from ....api.fields import Field, FieldSet, RouteDoc, Values, read
from ....api.generation import common_fields
from ....api.generation.common_fields import (
    MODEL,
    NUM_LOGPROBS,
    PROMPT_LOGPROBS,
    REQUEST_ID,
    STREAM,
    STREAM_OPTIONS,
    STRUCTURED,
)
from ....api.generation.sampling import SAMPLING, GenerationFields, token_ids
from ....api.response import new_id, now, usage, warning_headers, written
from ....api.schemas import TOKENS
from ....api.services import Services
from ....errors import BadRequest
from ....models.generation import Generation, collect
from ....types import Delta, Json, Request, Response, Text, TokenLogprob, TokenPrompt, Usage
from ....util.chunked_json import serialized
from ...chat.generation import BodyReader, GenerationBody, errors_as_sent
from ...chat.logprobs import ID_BYTES, LogprobsRequest, generated_size, logprob_entry, prompt_logprobs, response_size

_OUTSIDE = FieldSet(
    (MODEL, STREAM, STREAM_OPTIONS, REQUEST_ID, SAMPLING.named("cache_salt"), SAMPLING.named("priority"))
)
_NOT_IN_SAMPLING_PARAMS = _OUTSIDE.names | {
    *("best_of", "use_beam_search", "length_penalty", "early_stopping", "id_slot"),
    *("truncate_prompt_tokens", "truncation_side"),
}
SAMPLING_PARAMS = FieldSet((
    *(field for field in SAMPLING if field.name not in _NOT_IN_SAMPLING_PARAMS),
    *(NUM_LOGPROBS, PROMPT_LOGPROBS, STRUCTURED[0]),
))  # fmt: skip
"""The fields of vLLM's SamplingParams."""
FIELDS = FieldSet((
    Field("token_ids", "array", "token ids of the prompt", required=True, schema=TOKENS | {"minItems": 1}),
    Field("sampling_params", "object",
        "fields of completions: temperature, max_tokens, stop, logprobs, structured_outputs, ...; no beam search",
        required=True, fields=SAMPLING_PARAMS, schema={"additionalProperties": True}),
    *_OUTSIDE,
    Field("output_mode", "string", "text also returns the text", choices=("tokens", "text"), default="tokens"),
    Field("features", "object",
        "features of images, which are not supported; must be null", schema={"maxProperties": 0}),
))  # fmt: skip
_FLAT = GenerationFields((*_OUTSIDE, *SAMPLING_PARAMS))
_SENT_AS = (("prompt", "token_ids"), *((field.name, f"sampling_params.{field.name}") for field in SAMPLING_PARAMS))
"""The names of fields in completions and here, for errors."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A parsed body."""

    prompt: TokenPrompt
    """The token ids of the prompt."""
    generation: GenerationBody
    """The request, without its prompt."""
    id: str
    """The id of the request."""
    text: bool
    """Whether the response has text, and log probabilities have the text of their tokens."""

    def choice(
        self, index: int, tokens: list[int], logprobs: list[TokenLogprob], text: str, finish: str | None
    ) -> Json:
        """Returns a choice of a response, or of a chunk of a stream.

        Args:
            index: The index of the choice.
            tokens: The new token ids.
            logprobs: The log probabilities of the tokens.
            text: The new text.
            finish: The finish reason; None while the choice continues.
        """
        listed = list if self.generation.stream else serialized
        entries = {"content": listed(map(self._entry, logprobs))} if logprobs else None
        choice = {"index": index, "logprobs": entries, "finish_reason": finish, "token_ids": tokens}
        return choice | {"text": text} if self.text else choice

    def _entry(self, token: TokenLogprob) -> Json:
        entry = logprob_entry(token, by_id=self.generation.named_by_id or not self.text)
        for shown, one in zip((entry, *entry["top_logprobs"]), (token, *token.top), strict=True):
            shown["token_id"] = one.id
        return entry

    def envelope(self, choices: list[Json], counts: Usage | None) -> Json:
        """Returns the object of a response, or of a chunk of a stream."""
        counted = None if counts is None else usage(counts)
        mode = "text" if self.text else "tokens"
        return {"request_id": self.id, "choices": choices, "usage": counted, "output_mode": mode}


@RouteDoc("Generate token ids from token ids", body=FIELDS, stream=True)
async def handle(request: Request, services: Services) -> Response:
    parsed = await services.parse_body(request, _read)
    body = parsed.generation
    with errors_as_sent(_SENT_AS):
        generation = await body.start(parsed.prompt, echo=body.logprobs.prompt is not None)
    headers = body.headers + warning_headers(generation.warnings)
    if body.stream:
        return sse.response(generation, TokenRenderer(parsed, generation), services.config.sse_ping_s, headers)
    try:
        size = response_size(body.sampling, generation.prompt_tokens, stream=False)
        answers = await collect(generation, body.sampling.n)
        tokens = generation.usage.completion_tokens
        size += generated_size(body.sampling, tokens) + ID_BYTES * tokens

        def work() -> Json:
            choices = [parsed.choice(i, a.tokens, a.logprobs, a.text, a.finish) for i, a in enumerate(answers)]
            shown = parsed.envelope(choices, generation.usage) | {"model": body.model.name, "created": now()}
            if (most := body.logprobs.prompt) is not None:
                shown["prompt_logprobs"] = prompt_logprobs(generation.prompt_entries(), most)
            return shown

        return await written(services.offload, size, work, headers)
    finally:
        await generation.aclose()


def _read(body: Json, services: Services) -> GenerateRequest:
    values: Values = read(FIELDS, body)
    if values["features"]:
        raise BadRequest("features are not supported; send images to chat/completions", param="features")
    tokens, params = values["token_ids"], values["sampling_params"]
    if not tokens:
        raise BadRequest("token_ids is missing or empty", param="token_ids")
    if params is None:
        raise BadRequest("sampling_params is missing", param="sampling_params")
    outside = {name: body.get(name) for name in _OUTSIDE.names}
    with errors_as_sent(_SENT_AS):
        reader = BodyReader(_FLAT, {**params, **outside}, services)
        number = reader.values["logprobs"]
        generation = reader.generation(
            logprobs=LogprobsRequest(
                chosen=number is not None, top=number or 0, param="logprobs", prompt=reader.values["prompt_logprobs"]
            ),
            parsed=False,
        )
    if generation.model.image_tokens is not None:
        raise BadRequest("a model with vision only generates from messages", param="model")
    notices = [*generation.notices, *common_fields.warnings(FIELDS, body)]
    return GenerateRequest(
        prompt=TokenPrompt(token_ids(tokens, "token_ids")),
        generation=replace(generation, notices=notices),
        id=new_id("generate-tokens", values["request_id"]),
        text=values["output_mode"] == "text",
    )


class TokenRenderer(sse.Renderer[Delta]):
    """Renders deltas as events with token ids."""

    def __init__(self, parsed: GenerateRequest, generation: Generation) -> None:
        self._parsed = parsed
        self._generation = generation
        self._continuous = parsed.generation.stream_options["continuous_usage_stats"]

    def deltas(self, deltas: list[Delta]) -> bytes:
        return b"".join([self._delta(delta) for delta in deltas])

    def _delta(self, delta: Delta) -> bytes:
        text = "".join([said.text for said in delta.events if isinstance(said, Text)])
        if not (delta.tokens or text or delta.finish):
            return b""
        choice = self._parsed.choice(delta.index, delta.tokens, delta.logprobs, text, delta.finish)
        return sse.event(self._parsed.envelope([choice], self._generation.usage if self._continuous else None))

    def end(self, usage: Usage) -> bytes:
        options = self._parsed.generation.stream_options
        wanted = options["include_usage"] or self._continuous
        return sse.event(self._parsed.envelope([], usage)) if wanted else b""

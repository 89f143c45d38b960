"""POST …/completions: OpenAI's older API, text in, text out, with OVMS's and vLLM's parameters.

https://platform.openai.com/docs/api-reference/completions,
https://github.com/openvinotoolkit/model_server/blob/main/docs/model_server_rest_api_completions.md. A prompt may
be a string, a list of strings, a list of token ids or a list of such lists. suffix is for models that fill in
(generation/fim.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from ...config import Config
from ...errors import BadRequest, RequestError
from ...models.collect import CompletedChoice, collect
from ...models.generation import Generation, GenerationGroup, joined
from ...types import Delta, Json, OutputParams, Request, Response, Text, TextPrompt, TokenLogprob, TokenPrompt, Usage
from .. import sse
from ..fields import Field, Values
from ..generation import logprobs_request
from ..generation.common_fields import ANSWERING, PROMPT_LOGPROBS
from ..generation.fim import filled_in
from ..generation.llama_cpp_fields import SAMPLING_NAMES, sampling_names
from ..generation.logprobs_request import LogprobsRequest
from ..generation.request import BodyReader, GenerationBody, check_sequences
from ..generation.sampling import SAMPLING, GenerationFields
from ..generation.structured_output import RESPONSE_FORMAT, STRUCTURED
from ..generation.token_fields import token_ids
from ..response import ID_BYTES, json, prompt_logprobs, warning_headers
from ..route_doc import RouteDoc
from ..routes import follows_ovms
from ..schemas import PROMPT
from ..services import INLINE_BYTES, Services
from .chunks import ChoiceState, ChunkOptions, Chunks, Envelope

NOT_WITH_VISION = "VLM Servable does not support the /completions endpoint. Use /chat/completions or /responses."
DEFAULT_MAX_TOKENS = 16
"""OpenAI's and vLLM's, for a text without an end, which would fill the context otherwise."""
LOGPROBS = Field(
    "logprobs",
    "int",
    "return the log probability of each chosen token and of this many of the likeliest, at most --max_logprobs; "
    "-1: all. With echo also for the prompt. Without PAGED for the chosen tokens alone",
    low=-1,
    wrong="logprobs accepts integer values",
)
FIELDS = (
    Field("prompt", "any", "a string, strings, token ids, or lists of token ids", required=True, schema=PROMPT),
    replace(
        SAMPLING.named("max_tokens"),
        help=f"maximum number of generated tokens (default: {DEFAULT_MAX_TOKENS}; under /v3 as many as fit)",
    ),
    Field("echo", "bool", "begin the answer with the prompt", default=False),
    Field("suffix", "string", "text after what is generated, for models that fill in the middle"),
    LOGPROBS,
    PROMPT_LOGPROBS,
    Field("add_special_tokens", "bool", "let the tokenizer add BOS and the like", default=True),
)
_SAMPLING = tuple(field for field in SAMPLING if field.name != "max_tokens")
ALL_FIELDS = GenerationFields((*ANSWERING, *FIELDS, RESPONSE_FORMAT, *STRUCTURED, *_SAMPLING, *SAMPLING_NAMES))

TokenPrompts = Sequence[TextPrompt | TokenPrompt]
MAX_ECHOED = 8 << 20
"""Bytes of the prompts in a response: writing them is one call, 1 ms for each MB."""


@dataclass(slots=True, kw_only=True)
class CompletionRequest:
    """The body of a completions request. Not changed once it is built.

    echoed: bytes of the prompts in the answer, roughly. score_only: max_tokens 0 with echo.
    """

    prompts: TokenPrompts
    suffix: str
    generation: GenerationBody
    echo: bool
    echoed: int
    score_only: bool
    options: ChunkOptions


@RouteDoc("Continue a text", body=ALL_FIELDS, stream=True)
async def handle(request: Request, services: Services) -> Response:
    default = 0 if follows_ovms(request) else DEFAULT_MAX_TOKENS
    completion = await services.parse_body(request, partial(parse_completion, default_max_tokens=default))
    completion, generations = await start(completion)
    group = joined(generations, completion.generation.sampling.n)
    try:
        stream, sampling = completion.generation.stream, completion.generation.sampling
        size = logprobs_request.response_size(sampling, group.usage.prompt_tokens, stream=stream, copies=sampling.n)
        size += completion.echoed
        echoes = [await _echo(completion, p, g) for p, g in zip(completion.prompts, generations, strict=True)]
        headers = completion.generation.headers + warning_headers(generations[0].warnings)
        if stream:
            return sse.response(
                group, CompletionRenderer(completion, group, echoes), services.config.sse_ping_s, headers
            )
        choices = await collect(group, len(generations) * sampling.n)
        size += logprobs_request.generated_size(sampling, group.usage.completion_tokens)
        work = lambda: json(full(completion, choices, echoes, group), headers)  # noqa: E731
        body = await services.offload.run(size, work, inline_below=INLINE_BYTES)
    except BaseException:
        await group.aclose()
        raise
    await group.aclose()
    return body


def parse_completion(body: Json, services: Services, default_max_tokens: int) -> CompletionRequest:
    """Raises RequestError."""
    reader = BodyReader(ALL_FIELDS, body, services)
    values, renamed = reader.values, sampling_names(reader.values)
    if values["suffix"] and (values["echo"] or values["prompt_logprobs"] is not None):
        raise BadRequest("suffix cannot be combined with echo and prompt_logprobs", param="suffix")
    score_only = values["max_tokens"] == 0
    if score_only:
        if not values["echo"]:
            raise BadRequest("max_tokens value should be greater than 0 unless echo is set", param="max_tokens")
        renamed["max_tokens"] = 1  # the engine always generates; this token is not shown
    number = values["logprobs"]
    generation = reader.generation(
        renamed,
        logprobs=LogprobsRequest(
            chosen=number is not None,  # 0 requests them, too
            top=number or 0,
            param="logprobs",
            prompt=values["prompt_logprobs"],
            echoed=values["echo"],
        ),
        parsing=OutputParams(),
        default_max_tokens=default_max_tokens if values["n_predict"] is None else 0,
    )
    prompts = _prompts(values, services.config)
    check_sequences(len(prompts), generation.sampling, services.config)
    metrics = services.config.enable_per_request_metrics and len(prompts) == generation.sampling.n == 1
    options = ChunkOptions.of(values, generation, metrics=metrics)
    return CompletionRequest(
        prompts=prompts,
        suffix=values["suffix"] or "",
        generation=generation,
        echo=values["echo"],
        echoed=_echoed(prompts, generation.sampling.n, echo=values["echo"], ids=options.token_ids),
        score_only=score_only,
        options=options,
    )


def _echoed(prompts: TokenPrompts, n: int, *, echo: bool, ids: bool) -> int:
    """Returns the bytes of the prompts in the response, roughly: each choice repeats its own. Raises BadRequest."""
    if not (echo or ids):
        return 0
    parts = [len(p.text) if isinstance(p, TextPrompt) else ID_BYTES * len(p.tokens) for p in prompts]
    size = n * sum(parts)
    if size > MAX_ECHOED:
        what = f"{len(parts)} prompts in {n} answers each"
        param = "echo" if echo else "return_token_ids"
        raise BadRequest(f"{what} would be {size} bytes; the limit is {MAX_ECHOED}", param=param)
    return size


def _prompts(values: Values, config: Config) -> TokenPrompts:
    prompt = values["prompt"]
    special = values["add_special_tokens"]
    if prompt is None or prompt in ("", []):
        raise BadRequest("prompt is missing" if prompt is None else "prompt is empty", param="prompt")
    if isinstance(prompt, str):
        return [TextPrompt(prompt, special)]
    if not isinstance(prompt, list):
        raise BadRequest("prompt is not a string, an array of strings or an array of token ids", param="prompt")
    if type(prompt[0]) in (int, float):
        return [TokenPrompt(token_ids(prompt, "prompt"))]
    if len(prompt) > config.max_prompts:
        raise BadRequest(f"prompt has {len(prompt)} entries; the limit is {config.max_prompts}", param="prompt")
    return [_one_prompt(item, i, special) for i, item in enumerate(prompt)]


def _one_prompt(item: Any, index: int, special: bool) -> TextPrompt | TokenPrompt:
    param = f"prompt[{index}]"
    if not item:
        raise BadRequest(f"{param} is empty", param=param)
    if isinstance(item, str):
        return TextPrompt(item, special)
    if isinstance(item, list):
        return TokenPrompt(token_ids(item, param))
    raise BadRequest(f"{param} is not a string or an array of token ids", param=param)


async def start(completion: CompletionRequest) -> tuple[CompletionRequest, list[Generation]]:
    """Starts a generation for each prompt, or none. Returns them, and the request as it was started. Raises
    RequestError."""
    prompts: Iterable[TextPrompt | TokenPrompt] = completion.prompts
    if completion.suffix:
        generation, prompts = await filled_in(completion.generation, completion.prompts, completion.suffix)
        completion = replace(completion, generation=generation)
    if completion.generation.model.image_tokens is not None:
        raise BadRequest(NOT_WITH_VISION, param="model")
    scored = completion.generation.logprobs.prompt is not None
    want = completion.echo or completion.options.token_ids or scored
    return completion, await completion.generation.start_all(prompts, echo=want)


@dataclass(slots=True)
class Echo:
    """The prompt as its choices repeat it; empty without echo."""

    text: str
    generation: Generation

    def logprobs(self) -> list[TokenLogprob]:
        """The prompt's tokens; known with the generation's first delta."""
        return self.generation.prompt_entries() if self.text else []


async def _echo(completion: CompletionRequest, prompt: TextPrompt | TokenPrompt, generation: Generation) -> Echo:
    if not completion.echo:
        return Echo("", generation)
    if isinstance(prompt, TextPrompt) and completion.generation.truncate is None:
        return Echo(prompt.text, generation)
    return Echo(await generation.prompt_text(completion.generation.output.skip_special_tokens), generation)


def full(
    completion: CompletionRequest,
    answers: list[CompletedChoice],
    echoes: list[Echo],
    group: Generation | GenerationGroup,
) -> Json:
    """The text_completion object."""
    n = completion.generation.sampling.n
    found = [(i, answer) for i, answer in enumerate(answers) if answer.finish]
    choices = [_choice(completion, i, answer, echoes[i // n]) for i, answer in found]
    return _envelope(completion).full(choices, _counts(completion, group.usage), completion.options.times(group))


def _envelope(completion: CompletionRequest) -> Envelope:
    name = completion.generation.model.name
    return Envelope(id=completion.options.response_id("cmpl"), model=name, object="text_completion")


def _counts(completion: CompletionRequest, counts: Usage) -> Usage:
    return Usage(counts.prompt_tokens, cached_tokens=counts.cached_tokens) if completion.score_only else counts


def _choice(completion: CompletionRequest, index: int, answer: CompletedChoice, echo: Echo) -> Json:
    if completion.score_only:
        answer = CompletedChoice(finish="length")
    tokens = echo.logprobs() + answer.logprobs
    choice: Json = {
        "finish_reason": answer.finish,
        "index": index,
        "logprobs": _logprobs(tokens, completion.options) if completion.generation.sampling.logprobs else None,
        "text": echo.text + answer.text,
    }
    if answer.stop is not None:
        choice["stop_reason"] = answer.stop
    if completion.options.token_ids:
        choice["token_ids"] = answer.tokens
        choice["prompt_token_ids"] = echo.generation.prompt_ids
    if (most := completion.generation.logprobs.prompt) is not None:
        choice["prompt_logprobs"] = prompt_logprobs(echo.generation.prompt_entries(), most)
    return choice


def _logprobs(tokens: list[TokenLogprob], options: ChunkOptions, offset: int = 0) -> Json:
    """Returns OpenAI's four parallel lists; offsets are in characters, and the first entry's is `offset`."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return {
        "tokens": [options.name(t) for t in tokens],
        "token_logprobs": [t.logprob for t in tokens],
        "top_logprobs": [_by_name(token, options) for token in tokens],
        "text_offset": offsets,
    }


def _by_name(token: TokenLogprob, options: ChunkOptions) -> dict[str, float | None] | None:
    """The likeliest tokens and the token itself; of several with one name (parts of characters) the likeliest."""
    if token.logprob is None:
        return None
    found: dict[str, float | None] = {}
    for other in (*token.top, token):
        found.setdefault(options.name(other), other.logprob)
    return found


class CompletionRenderer:
    """Renders deltas as text_completion events."""

    def __init__(self, completion: CompletionRequest, group: Generation | GenerationGroup, echoes: list[Echo]) -> None:
        self._chunks = Chunks(_envelope(completion), group, completion.options)
        self._completion = completion
        self._echoes = echoes
        self._choices = [ChoiceState() for _ in range(len(echoes) * completion.generation.sampling.n)]
        self._offsets = [0] * len(self._choices)
        self._scored = completion.generation.sampling.prompt_logprobs
        self._held: list[Delta] = []

    def deltas(self, deltas: list[Delta]) -> bytes:
        if self._scored:
            deltas = self._due(deltas)
        return b"".join([self._delta(delta, self._choices[delta.index]) for delta in deltas])

    def _due(self, deltas: list[Delta]) -> list[Delta]:
        """Returns the deltas whose prompt is scored, and keeps others back.

        The first choice, which scores it, may be later.
        """
        due, held = list[Delta](), list[Delta]()
        for delta in self._held + deltas:
            ready = delta.progress is not None or self._echo(delta).generation.prompt_scored
            (due if ready else held).append(delta)
        self._held = held
        return due

    def _echo(self, delta: Delta) -> Echo:
        return self._echoes[delta.index // self._completion.generation.sampling.n]

    def _delta(self, delta: Delta, state: ChoiceState) -> bytes:
        events = delta.events
        if state.text is not None and delta.finish is None and len(events) == 1 and type(events[0]) is Text:
            before, after = state.text  # nearly every chunk
            return before + orjson.dumps(events[0].text) + after
        out = b""
        if delta.progress is not None:
            return self._chunks.progress(delta.index, b'"text":""', delta.progress)
        if not state.started:
            state.started = True
            echo = self._echo(delta)
            state.logprobs += echo.logprobs()
            if self._completion.options.token_ids:
                state.prompt_ids = echo.generation.prompt_ids
            out = self._chunk(delta.index, echo.text, state)
            if not (self._completion.score_only or self._completion.generation.sampling.logprobs):
                state.text = self._chunks.around(delta.index, b'"text":', b"")
        if self._completion.score_only:
            return out + (self._chunk(delta.index, "", state, "length") if delta.finish else b"")
        state.add(delta)
        for said in delta.events:
            if isinstance(said, Text):
                out += self._chunk(delta.index, said.text, state)
        if delta.finish:
            out += self._chunk(delta.index, "", state, delta.finish)
        return out

    def _chunk(self, index: int, text: str, state: ChoiceState, finish: str = "") -> bytes:
        logprobs = b"null"
        if self._completion.generation.sampling.logprobs and state.logprobs:
            logprobs = orjson.dumps(_logprobs(state.logprobs, self._completion.options, self._offsets[index]))
            self._offsets[index] += sum(len(t.token) for t in state.logprobs)
            state.logprobs = []
        return self._chunks.chunk(index, b'"text":' + orjson.dumps(text), state, logprobs, finish)

    def end(self, usage: Usage) -> bytes:
        return self._chunks.end(_counts(self._completion, usage))

    def failed(self, error: RequestError) -> bytes:
        return self._chunks.failed(error)

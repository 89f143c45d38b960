"""POST …/completions: OpenAI's older API, text in, text out, with OVMS's and vLLM's parameters.

https://platform.openai.com/docs/api-reference/completions,
https://github.com/openvinotoolkit/model_server/blob/main/docs/model_server_rest_api_completions.md. suffix is for
models that fill in (fim.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import orjson

from ...api import sse
from ...api.fields import RouteDoc
from ...api.response import warning_headers, written
from ...api.services import Services
from ...models.generation import CompletedChoice, DeltaStream, Generation, collect
from ...types import Delta, Json, Request, Response, Text, TextPrompt, TokenLogprob, TokenPrompt, Usage
from ...util import chunked_json
from ..chat.chunks import ChoiceState, ChunkOptions, Chunks, Envelope
from ..chat.logprobs import generated_size, prompt_logprobs, response_size
from .request import ALL_FIELDS, CompletionRequest, max_tokens_of, parse_completion, start
from .several import joined


@RouteDoc("Continue a text", body=ALL_FIELDS, other_clients=True, stream=True)
async def handle(request: Request, services: Services) -> Response:
    parse = partial(parse_completion, default_max_tokens=max_tokens_of(request))
    completion = await services.parse_body(request, parse)
    completion, generations = await start(completion)
    group = joined(generations, completion.generation.sampling.n)
    try:
        stream, sampling = completion.generation.stream, completion.generation.sampling
        size = response_size(sampling, group.usage.prompt_tokens, stream=stream, copies=sampling.n)
        size += completion.echoed
        echoes = [await _echo(completion, p, g) for p, g in zip(completion.prompts, generations, strict=True)]
        headers = completion.generation.headers + warning_headers(generations[0].warnings)
        if stream:
            return sse.response(
                group, CompletionRenderer(completion, group, echoes), services.config.sse_ping_s, headers
            )
        choices = await collect(group, len(generations) * sampling.n)
        size += generated_size(sampling, group.usage.completion_tokens)
        body = await written(services.offload, size, lambda: full(completion, choices, echoes, group), headers)
    except BaseException:
        await group.aclose()
        raise
    await group.aclose()
    return body


@dataclass(slots=True)
class Echo:
    """The prompt as the choices repeat it; empty without echo."""

    text: str
    """The text of the prompt; "" without echo."""
    generation: Generation
    """The generation, which has the log probabilities of the prompt's tokens."""

    def logprobs(self) -> list[TokenLogprob]:
        """Returns the prompt's tokens with their log probabilities, which are known with the first delta."""
        return self.generation.prompt_entries() if self.text else []


async def _echo(completion: CompletionRequest, prompt: TextPrompt | TokenPrompt, generation: Generation) -> Echo:
    if not completion.echo:
        return Echo("", generation)
    if isinstance(prompt, TextPrompt) and completion.generation.truncate is None:
        return Echo(prompt.text, generation)
    return Echo(await generation.prompt_text(completion.generation.output.skip_special_tokens), generation)


def full(completion: CompletionRequest, answers: list[CompletedChoice], echoes: list[Echo], group: DeltaStream) -> Json:
    """Returns the text_completion object with all choices."""
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
    """Returns the four parallel lists of `logprobs`, for chunked_json. Text offsets count characters from `offset`."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return {
        "tokens": [options.name(t) for t in tokens],
        "token_logprobs": [t.logprob for t in tokens],
        "top_logprobs": chunked_json.serialized(_by_name(token, options) for token in tokens),
        "text_offset": offsets,
    }


def _by_name(token: TokenLogprob, options: ChunkOptions) -> dict[str, float | None] | None:
    """Returns the log probabilities of the likeliest tokens and the token itself by their texts.

    Of several tokens with the same text, such as parts of characters, the likeliest one counts.
    """
    if token.logprob is None:
        return None
    found: dict[str, float | None] = {}
    for other in (*token.top, token):
        found.setdefault(options.name(other), other.logprob)
    return found


class CompletionRenderer(sse.Renderer[Delta]):
    """Renders deltas as text_completion events."""

    def __init__(self, completion: CompletionRequest, group: DeltaStream, echoes: list[Echo]) -> None:
        self._chunks = Chunks(_envelope(completion), group, completion.options)
        self._completion = completion
        self._echoes = echoes
        self._choices = [ChoiceState() for _ in range(len(echoes) * completion.generation.sampling.n)]
        self._offsets = [0] * len(self._choices)
        self._scored = completion.generation.sampling.prompt_logprobs
        self._unscored: list[Delta] = []

    def deltas(self, deltas: list[Delta]) -> bytes:
        if self._scored:
            deltas = self._due(deltas)
        return b"".join([self._delta(delta, self._choices[delta.index]) for delta in deltas])

    def _due(self, deltas: list[Delta]) -> list[Delta]:
        """Returns the deltas whose prompt's log probabilities are known, and holds the others back.

        The first choice computes them for all choices of its prompt, and its delta may arrive after those of others.
        """
        due, unscored = list[Delta](), list[Delta]()
        for delta in self._unscored + deltas:
            ready = delta.progress is not None or self._echo(delta).generation.prompt_scored
            (due if ready else unscored).append(delta)
        self._unscored = unscored
        return due

    def _echo(self, delta: Delta) -> Echo:
        return self._echoes[delta.index // self._completion.generation.sampling.n]

    def _delta(self, delta: Delta, state: ChoiceState) -> bytes:
        events = delta.events
        if state.text is not None and delta.finish is None and len(events) == 1 and type(events[0]) is Text:
            before, after = state.text  # the path of nearly all chunks
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
            logprobs = chunked_json.dumps(_logprobs(state.logprobs, self._completion.options, self._offsets[index]))
            self._offsets[index] += sum(len(t.token) for t in state.logprobs)
            state.logprobs = []
        return self._chunks.chunk(index, b'"text":' + orjson.dumps(text), state, logprobs, finish)

    def end(self, usage: Usage) -> bytes:
        return self._chunks.end(_counts(self._completion, usage))

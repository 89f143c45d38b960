"""POST /completion and POST /infill of llama.cpp's server, which editors use (llama.vim, llama.vscode).

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. /infill is for models with the tokens for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from ...errors import BadRequest, RequestError
from ...models.collect import CompletedChoice
from ...models.generation import Generation
from ...types import Delta, Json, Request, Response, Text, TextPrompt, TokenPrompt, Usage
from ..app import App
from ..fields import FieldSet
from ..generation.request import GenerationRequest, parse
from ..generation.token_fields import token_ids
from ..response import json, prompt_progress, timings, warning_headers
from ..router import Route, RouteDoc
from ..sse import HEADERS, EventStream, event
from .fields import COMPLETION, INFILL, SCHEMA, translated, values_of
from .fill_in import filling_of

monotonic = time.monotonic


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. values: its fields by llama.cpp's names."""

    values: Json
    generation: GenerationRequest

    @property
    def hidden(self) -> bool:
        """Whether nothing is to be generated, but for the one token that the engine always generates."""
        return bool(self.values["n_predict"] == 0)


async def handle_completion(request: Request, app: App) -> Response:
    asked = await app.parse_body(request, lambda body, app: _read(COMPLETION, body, app))
    return await _respond(asked, _prompt(asked.values["prompt"]), app)


async def handle_infill(request: Request, app: App) -> Response:
    asked = await app.parse_body(request, lambda body, app: _read(INFILL, body, app))
    values, generation = asked.values, asked.generation
    filling = await filling_of(generation.model)
    before = values["input_prefix"] + values["prompt"]
    text = filling.notation.prompt(before, values["input_suffix"], values["input_extra"] or [])
    ends = (*generation.sampling.stop_token_ids, *filling.ends)
    sampling = replace(generation.sampling, stop_token_ids=ends)
    cut = replace(generation, sampling=sampling, truncate=-1)  # the first of the other files goes first
    return await _respond(replace(asked, generation=cut), TextPrompt(text), app)


def _read(fields: FieldSet, body: Json, app: App) -> Asked:
    values = values_of(fields, body)
    return Asked(values, parse(translated(values), SCHEMA, app))


def _prompt(prompt: Any) -> TextPrompt | TokenPrompt:
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        [prompt] = prompt
    if isinstance(prompt, str) and prompt:
        return TextPrompt(prompt)
    if isinstance(prompt, list) and prompt:
        return TokenPrompt(token_ids(prompt, "prompt"))
    raise BadRequest("prompt is not a string or an array of token ids", param="prompt")


async def _respond(asked: Asked, prompt: TextPrompt | TokenPrompt, app: App) -> Response:
    generation = await asked.generation.start(prompt)
    headers = asked.generation.headers + warning_headers(generation.warnings)
    if asked.generation.stream:
        renderer = Renderer(asked, generation)
        return Response(200, HEADERS + headers, EventStream(generation, renderer, app.config.sse_ping_s, done=b""))
    try:
        choice = await _collect(generation, asked.values["t_max_predict_ms"])
    finally:
        await generation.aclose()
    return json(_selected(_whole(asked, generation, choice, choice.text), asked.values["response_fields"]), headers)


async def _collect(generation: Generation, most_ms: int | None) -> CompletedChoice:
    """The answer, or what of it came in this time after its first token, if that has a line break."""
    choice, texts, started = CompletedChoice(finish="length"), list[str](), 0.0
    lines = False
    async for deltas in generation:
        started = started or monotonic()
        for delta in deltas:
            texts += [said.text for said in delta.events if isinstance(said, Text)]
            choice.tokens += delta.tokens
            if delta.finish:
                choice.finish, choice.stop = delta.finish, delta.stop
        lines = lines or bool(most_ms and most_ms > 0 and any("\n" in text for text in texts))
        if lines and most_ms and 1000 * (monotonic() - started) > most_ms:
            break
    choice.text = "".join(texts)
    return choice


def _whole(asked: Asked, generation: Generation, choice: CompletedChoice, text: str) -> Json:
    """The last object. text: what was not streamed before."""
    usage, word = generation.usage, choice.stop if isinstance(choice.stop, str) else ""
    kind = "word" if word else "limit" if choice.finish == "length" or asked.hidden else "eos"
    predicted = 0 if asked.hidden else usage.completion_tokens
    return {
        "index": 0,
        "content": "" if asked.hidden else text,
        "tokens": choice.tokens if asked.values["return_tokens"] and not asked.hidden else [],
        "id_slot": 0,
        "stop": True,
        "model": asked.generation.model.name,
        "tokens_predicted": predicted,
        "tokens_evaluated": usage.prompt_tokens,
        "has_new_line": "\n" in choice.text,
        "truncated": False,
        "stop_type": kind,
        "stopping_word": word,
        "tokens_cached": usage.prompt_tokens + predicted,
        "timings": timings(replace(generation.timings, predicted=predicted)),
    }


def _selected(body: Json, paths: list[str] | None) -> Json:
    """The members of these paths, such as timings/prompt_n, each under its path; all of them without paths."""
    if not paths:
        return body
    found: Json = {}
    for path in paths:
        value: Any = body
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found


class Renderer:
    """Deltas to llama.cpp's events; the last one has "stop": true, and there is no [DONE]."""

    def __init__(self, asked: Asked, generation: Generation) -> None:
        self._asked = asked
        self._generation = generation
        self._choice = CompletedChoice()

    def deltas(self, deltas: list[Delta]) -> bytes:
        return b"".join([self._delta(delta) for delta in deltas])

    def _delta(self, delta: Delta) -> bytes:
        if delta.finish:
            self._choice.finish, self._choice.stop = delta.finish, delta.stop
        text = "".join(said.text for said in delta.events if isinstance(said, Text))
        if self._asked.hidden or not (text or delta.progress):
            return b""
        if "\n" in text:
            self._choice.text = "\n"
        usage = self._generation.usage
        shown: Json = {
            "index": 0,
            "content": text,
            "tokens": delta.tokens,
            "stop": False,
            "id_slot": 0,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
        }
        if delta.progress:
            shown["prompt_progress"] = prompt_progress(delta.progress)
        if self._asked.values["timings_per_token"]:
            shown["timings"] = timings(self._generation.timings)
        return event(shown)

    def end(self, usage: Usage) -> bytes:
        return event(_whole(self._asked, self._generation, self._choice, ""))

    def failed(self, error: RequestError) -> bytes:
        return event(error.body())


COMPLETE = RouteDoc(
    summary="How a text goes on, in llama.cpp's form",
    body=COMPLETION,
    answer="LlamaCompletion",
    chunks="LlamaCompletion",
)
FILL_IN = RouteDoc(
    summary="The middle of a text, in llama.cpp's form", body=INFILL, answer="LlamaCompletion", chunks="LlamaCompletion"
)
ROUTES = [
    Route("POST", "/completion", handle_completion, doc=COMPLETE),
    Route("POST", "/infill", handle_infill, doc=FILL_IN),
]

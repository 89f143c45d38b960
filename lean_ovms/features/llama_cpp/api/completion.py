"""POST /completion, /completions and /infill of llama.cpp's server, for front ends, llama.vim and llama.vscode.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. /infill is for models with tokens for filling
in. Each of several prompts is a generation, with `n_cmpl` answers: the response is a list of all answers, or a stream
of their events, told apart by `index`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ....api import sse
from ....api.fields import FieldSet, RouteDoc, Values
from ....api.generation.common_fields import overruled, warnings
from ....api.response import warning_headers, written
from ....api.services import Services
from ....api.sse import Renderer, event
from ....models.generation import Collector, CompletedChoice, DeltaStream, Generation
from ....types import Delta, Json, Request, Response, Text, TextPrompt, TokenLogprob, TokenPrompt
from ....types.push import Sink
from ...chat.chunks import prompt_progress, timings
from ...chat.generation import BodyReader, GenerationBody, check_sequences, errors_as_sent
from ...chat.logprobs import LogprobsRequest, generated_size
from ...completions.fim import filling_of
from ...completions.prompt_pieces import Pieces, prompt_of, read_several
from ...completions.several import joined, start_prompts
from ..fields import AS_COMPLETION, COMPLETION, INFILL, PRECEDENCE, sent_as, translated, values_of
from .results import CompletionCall, head, last, probabilities, selected

monotonic = time.monotonic
NO_BIAS = "logit_bias is not supported and was ignored"
RAW = "post_sampling_probs returns the model's probabilities before sampling parameters are applied"


@RouteDoc("Continue a text, in llama.cpp's form", body=COMPLETION, answer="object or array", stream=True)
async def handle_completion(request: Request, services: Services) -> Response:
    values, generation, prompts = await services.parse_body(request, _read_completion)
    encode = generation.model.encode
    return await _respond(values, generation, [await prompt_of(pieces, encode) for pieces in prompts], services)


@RouteDoc("Fill in the middle of a text, in llama.cpp's form", body=INFILL, answer="object or array", stream=True)
async def handle_infill(request: Request, services: Services) -> Response:
    values, generation = await services.parse_body(request, partial(_read, INFILL))
    filling = await filling_of(generation.model)
    before = [TextPrompt(values["input_prefix"] + values["prompt"])]
    made = await filling.prompts(generation.model, before, values["input_suffix"], values["input_extra"] or [])
    # A prompt that is too long loses the beginning of the other files.
    cut = replace(generation.ending_at(filling.ends), truncate=-1)
    return await _respond(values, cut, [*made], services)


def _read(fields: FieldSet, body: Json, services: Services) -> tuple[Values, GenerationBody]:
    values = values_of(fields, body)
    reader = BodyReader(AS_COMPLETION, translated(values, body), services)
    logprobs = LogprobsRequest(chosen=values["n_probs"] > 0, top=values["n_probs"], param="n_probs")
    with errors_as_sent(sent_as(values)):
        generation = reader.generation(logprobs=logprobs, parsed=False)
    notices = [*generation.notices, *warnings(fields, body), *overruled(values, PRECEDENCE)]
    return values, replace(generation, notices=notices)


def _read_completion(body: Json, services: Services) -> tuple[Values, GenerationBody, list[Pieces]]:
    values, generation = _read(COMPLETION, body, services)
    prompts = read_several(values["prompt"], services.config.max_prompts, "prompt")
    with errors_as_sent(sent_as(values)):
        check_sequences(len(prompts), generation.sampling, services.config)
    return values, generation, prompts


async def _with_words(values: Values, generation: GenerationBody) -> GenerationBody:
    """Adds the tokens of texts in logit_bias to the request's logit bias. Raises RequestError."""
    words = [(token, bias) for token, bias in values["logit_bias"] or [] if isinstance(token, str)]
    if not words:
        return generation
    if "logit_edits" not in generation.model.capabilities:
        return replace(generation, notices=[*generation.notices, NO_BIAS])
    ids = await generation.model.encode([word for word, _ in words], False)
    more = [(token, bias) for tokens, (_, bias) in zip(ids, words, strict=True) for token in tokens]
    biases = tuple(dict([*generation.sampling.logit_bias, *more]).items())
    return replace(generation, sampling=replace(generation.sampling, logit_bias=biases))


async def _respond(
    values: Values, generation: GenerationBody, prompts: Sequence[TextPrompt | TokenPrompt], services: Services
) -> Response:
    parsed = CompletionCall(values, await _with_words(values, generation), prompts)
    generations, each = await start_prompts(parsed.generation, prompts), parsed.generation.sampling.n
    group = joined(generations, each)
    warnings = generations[0].warnings + [RAW] * bool(values["n_probs"] and values["post_sampling_probs"])
    headers = parsed.generation.headers + warning_headers(warnings)
    if parsed.generation.stream:
        renderer = LlamaCppRenderer(parsed, generations)
        return sse.response(group, renderer, services.config.sse_ping_s, headers, done=b"")
    try:
        choices = await _collect(group, each * len(prompts), values["t_max_predict_ms"])
        size = generated_size(parsed.generation.sampling, group.usage.completion_tokens)

        def work() -> Json | list[Json]:
            bodies = [
                selected(
                    last(parsed, generations[index // each], index, choice, choice.text, len(choice.tokens)),
                    values["response_fields"],
                )
                for index, choice in enumerate(choices)
            ]
            return bodies if len(bodies) > 1 else bodies[0]

        return await written(services.offload, size, work, headers)
    finally:
        await group.aclose()


async def _collect(group: DeltaStream, count: int, most_ms: int | None) -> list[CompletedChoice]:
    """Collects the choices, of which there are `count`.

    With `most_ms`, generation ends so many milliseconds after the first token, once each choice has a line break.
    """
    collector, started, without_line = Collector(count), 0.0, set(range(count))

    def add(deltas: list[Delta]) -> None:
        nonlocal started
        started = started or monotonic()
        collector.add(deltas)
        for delta in deltas:
            if delta.finish or any("\n" in said.text for said in delta.events if isinstance(said, Text)):
                without_line.discard(delta.index)
        if most_ms and most_ms > 0 and not without_line and 1000 * (monotonic() - started) > most_ms:
            group.finish("length")

    await group.push_to(Sink(add))
    choices = collector.choices(ended=False)
    for choice in choices:
        choice.finish = choice.finish or "length"
    return choices


class LlamaCppRenderer(Renderer[Delta]):
    """Renders deltas as llama.cpp's events; the last one of each answer has "stop": true, and there is no [DONE]."""

    def __init__(self, parsed: CompletionCall, generations: Sequence[Generation]) -> None:
        self._parsed = parsed
        self._generations = generations
        self._each = parsed.generation.sampling.n
        self._choices = [CompletedChoice() for _ in range(self._each * len(generations))]
        self._counts = [0] * len(self._choices)  # of generated tokens
        # Tokens and log probabilities of text that has not been sent.
        self._unsent = [(list[int](), list[TokenLogprob]()) for _ in self._choices]

    def deltas(self, deltas: list[Delta]) -> bytes:
        return b"".join([self._delta(delta) for delta in deltas])

    def _delta(self, delta: Delta) -> bytes:
        choice, out = self._choices[delta.index], b""
        text = "".join(said.text for said in delta.events if isinstance(said, Text))
        self._counts[delta.index] += len(delta.tokens)
        if "\n" in text:
            choice.text = "\n"
        if not self._parsed.hidden:
            tokens, logprobs = self._unsent[delta.index]
            tokens += delta.tokens
            logprobs += delta.logprobs
            if text or delta.progress or (delta.finish and logprobs):
                out = self._part(delta, text)
        if delta.finish:
            choice.finish, choice.stop, choice.tokens = delta.finish, delta.stop, self._unsent[delta.index][0]
            generation, count = self._generations[delta.index // self._each], self._counts[delta.index]
            out += event(last(self._parsed, generation, delta.index, choice, "", count))
        return out

    def _part(self, delta: Delta, text: str) -> bytes:
        values, generation = self._parsed.values, self._generations[delta.index // self._each]
        tokens, logprobs = self._unsent[delta.index]
        self._unsent[delta.index] = [], []
        shown = head(self._parsed, generation, delta.index, self._counts[delta.index])
        shown |= {"content": text, "tokens": tokens, "stop": False}
        if delta.progress:
            shown["prompt_progress"] = prompt_progress(delta.progress)
        if values["timings_per_token"]:
            shown["timings"] = timings(generation.timings)
        if logprobs:
            shown["completion_probabilities"] = probabilities(logprobs, plain=values["post_sampling_probs"])
        return event(shown)

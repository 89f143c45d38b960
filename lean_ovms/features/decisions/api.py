"""POST …/decisions: the probabilities of answers to questions about an input, without a generated text.

https://platform.openai.com/docs/api-reference/decisions, which vLLM has as well. Each question is a prompt of its own
with the input in front, and the probabilities of the letters of its options as the first token of the reply are
compared. The engine must report log probabilities of tokens that were not chosen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from ...api.fields import Field, FieldSet, RouteDoc, read, require
from ...api.generation.common_fields import KEEP_ALIVE, MODEL, TEMPLATE_KWARGS, warnings
from ...api.generation.content import PLACE, Reads, load_media
from ...api.generation.sampling import SAMPLING, require_alternatives
from ...api.response import json, warning_headers
from ...api.schemas import SOME_TEXT, any_of, array
from ...api.services import Services
from ...errors import BadRequest
from ...models.generation import CompletedChoice, Generation, total_usage
from ...models.text_model import TextModel
from ...types import ChatPrompt, Json, OutputParams, Request, Response, SamplingParams
from ..completions.several import check_common, collect_each, start_all
from ..responses.response import counts
from ..responses.schemas import MESSAGES_AND_CALLS
from .questions import LETTERS, QUESTION, Question, read_input, read_questions

TAIL = 400
"""Characters at the end of a prompt after which the letters are tokenized."""

FIELDS = FieldSet((
    MODEL,
    Field("input", "any",
        "what the questions are about: a string, or input items as in the Responses API", required=True,
        schema=any_of(SOME_TEXT, array(any_of(*MESSAGES_AND_CALLS), 1))),
    Field("questions", "array",
        "objects with type (predicate, choice or score), instructions and optionally a name",
        required=True, schema={"items": QUESTION, "minItems": 1}),
    TEMPLATE_KWARGS,
    KEEP_ALIVE,
    SAMPLING.named("priority"),
    SAMPLING.named("cache_salt"),
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """A parsed request for decisions."""

    model: TextModel
    """The model that decides."""
    questions: list[Question]
    """The questions."""
    parts: list[Json]
    """The parts of the input."""
    base: ChatPrompt
    """The prompt without messages, which all prompts share."""
    cache_salt: str
    """The salt of the prefix cache."""
    priority: int
    """The priority of the request; lower values are computed first."""
    headers: list[tuple[str, str]]
    """The Warning headers of the response."""

    def prompt(self, question: Question) -> ChatPrompt:
        """Returns the prompt of a question. It copies the input, so it should be made only when it is needed."""
        return self.base.with_messages([{"role": "user", "content": question.prompt(self.parts)}])

    def own_bytes(self, question: Question, tokens: int) -> int:
        """Returns the size of a question's prompt without the input in bytes; with images, the number of all tokens."""
        own = question.prompt([])
        return len(own.encode()) if isinstance(own, str) else tokens


@RouteDoc("Probabilities of answers to questions about an input", body=FIELDS)
async def handle(request: Request, services: Services) -> Response:
    parsed = await services.parse_body(request, _parse)
    with await parsed.model.hold() as model:
        head, *rest = parsed.questions
        reads = Reads.of(model)
        [first_prompt] = await load_media([parsed.prompt(head)], [PLACE], reads, services)
        letters = await _letters(model, first_prompt, max(len(question.options) for question in parsed.questions))
        generate = partial(_generate, parsed, letters, model)

        async def start(prompt: ChatPrompt) -> Generation:
            [prompt] = await load_media([prompt], [PLACE], reads, services)
            return await generate(prompt)

        # The first generation fills the prefix cache for the others.
        generation, most = await generate(first_prompt), model.config.max_queued_tokens_per_client
        tokens = generation.prompt_tokens
        try:
            if rest:
                check_common(tokens, parsed.own_bytes(head, tokens), len(parsed.questions), most)
        except BaseException:
            await generation.aclose()
            raise
        first, usage = await collect_each([generation])
        others, more = await collect_each(
            await start_all(map(parsed.prompt, rest), start, most - tokens) if rest else []
        )
    answers = [
        question.answer(_chances(choice, len(question.options)))
        for question, choice in zip(parsed.questions, [*first, *others], strict=True)
    ]
    return json({"model": model.name, "answers": answers, "usage": counts(total_usage((usage, more)))}, parsed.headers)


def _parse(body: Json, services: Services) -> DecisionRequest:
    values = read(FIELDS, body)
    model = services.named_model(values, TextModel)
    require(FIELDS, values)
    parts = read_input(values["input"])
    questions = read_questions(values["questions"], services.config.max_prompts)
    model.require_ready()
    require_alternatives(model, "a decision")
    kwargs = {"enable_thinking": False} | (values["chat_template_kwargs"] or {})
    base = ChatPrompt(messages=[], template_kwargs=kwargs)
    headers = warning_headers(warnings(FIELDS, body) + model.keep_loaded(values["keep_alive"]))
    return DecisionRequest(model, questions, parts, base, values["cache_salt"] or "", values["priority"], headers)


async def _letters(model: TextModel, prompt: ChatPrompt, count: int) -> tuple[int, ...]:
    """Returns the token of each letter at the beginning of a reply. Raises RequestError."""
    tail = (await model.render(prompt))[-TAIL:]
    before, *after = await model.encode([tail, *(tail + letter for letter in LETTERS[:count])], False)
    tokens = tuple(ids[-1] for ids in after if ids[:-1] == before)
    if len(set(tokens)) != count:
        raise BadRequest(
            "this model's tokenizer does not have one token for each letter, which decisions need",
            param="model",
            code="not_supported",
        )
    return tokens


async def _generate(
    parsed: DecisionRequest, letters: tuple[int, ...], model: TextModel, prompt: ChatPrompt
) -> Generation:
    """Starts the generation of one token with the log probabilities of the letters. Raises RequestError."""
    sampling = SamplingParams(
        max_tokens=1, temperature=0.0, logprobs=True, logprob_token_ids=letters, cache_salt=parsed.cache_salt
    )
    return await model.start(prompt, sampling, OutputParams(), priority=parsed.priority)


def _chances(choice: CompletedChoice, count: int) -> list[float]:
    """Returns the probabilities of the first `count` letters among all tokens of the vocabulary."""
    return [math.exp(-math.inf if top.logprob is None else top.logprob) for top in choice.logprobs[0].top[:count]]

"""The probabilities of labels as the first token of a reply, which decide a question without a generated text.

Each question is a prompt of its own, and begins with the input, so that all of them share a cached prefix. The engine
must report log probabilities of tokens that were not chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ...api.fields import Values
from ...api.response import warning_headers
from ...api.services import Services
from ...errors import BadRequest
from ...models.generation import CompletedChoice, Generation, total_usage
from ...models.text_model import TextModel
from ...types import ChatPrompt, Json, OutputParams, SamplingParams, Usage
from ..chat.content import PLACE, Reads, load_media
from ..chat.logprobs import require_alternatives
from ..chat.request import errors_of_input
from ..completions.several import check_common, collect_each, start_all

TAIL = 400
"""Characters at the end of a prompt after which the labels are tokenized."""


class Labelled(Protocol):
    """A question whose options have labels."""

    @property
    def labels(self) -> Sequence[str]:
        """The label of each option."""

    def prompt(self, parts: list[Json]) -> str | list[Json]:
        """Returns the content of the question's message, which begins with these parts of the input."""


@dataclass(frozen=True, slots=True)
class LabelChances:
    """The probabilities of the labels of a question as the first token of the reply."""

    chances: list[float]
    """The probability of each label among all tokens of the vocabulary."""
    likeliest: bool
    """Whether the likeliest token of the vocabulary is a label."""

    @property
    def shares(self) -> list[float]:
        """The probability of each label among the labels; 0 for all if none is possible."""
        total = sum(self.chances) or 1.0
        return [chance / total for chance in self.chances]

    @property
    def best(self) -> int:
        """The index of the likeliest label."""
        return self.chances.index(max(self.chances))

    @property
    def mean(self) -> float:
        """The mean of the labels' indices, weighted by their shares."""
        return sum(place * share for place, share in enumerate(self.shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRequest:
    """A parsed request for decisions."""

    model: TextModel
    """The model that decides."""
    questions: Sequence[Labelled]
    """The questions."""
    parts: list[Json]
    """The parts of the input."""
    place: str
    """The name of the request's field with the files among the parts, for errors."""
    base: ChatPrompt
    """The messages before the questions, which all prompts share."""
    cache_salt: str
    """The salt of the prefix cache."""
    priority: int
    """The priority of the request; lower values are computed first."""
    headers: list[tuple[str, str]]
    """The Warning headers of the response."""

    @classmethod
    def of(
        cls,
        model: TextModel,
        questions: Sequence[Labelled],
        parts: list[Json],
        values: Values,
        notices: list[str],
        *,
        place: str,
        system: Sequence[Json] = (),
    ) -> DecisionRequest:
        """Returns the request of a body.

        Args:
            model: The model.
            questions: The questions.
            parts: The parts of the input.
            values: The values of the body; chat_template_kwargs, cache_salt, priority and keep_alive are read.
            notices: Warnings about the body.
            place: The name of the field with the files among the parts.
            system: The messages before the questions.

        Raises:
            RequestError: The model cannot decide, or not now.
        """
        model.require_ready()
        require_alternatives(model, "a decision")
        kwargs = {"enable_thinking": False} | (values["chat_template_kwargs"] or {})
        return cls(
            model=model,
            questions=questions,
            parts=parts,
            place=place,
            base=ChatPrompt(messages=[*system], template_kwargs=kwargs),
            cache_salt=values["cache_salt"] or "",
            priority=values["priority"],
            headers=warning_headers(notices + model.keep_loaded(values["keep_alive"])),
        )

    def prompt(self, question: Labelled) -> ChatPrompt:
        """Returns the prompt of a question. It copies the input, so it should be made only when it is needed."""
        return self.base.with_messages([*self.base.messages, {"role": "user", "content": question.prompt(self.parts)}])

    def own_bytes(self, question: Labelled, tokens: int) -> int:
        """Returns the size of a question's prompt without the input in bytes; with images, the number of all tokens."""
        own = question.prompt([])
        return len(own.encode()) if isinstance(own, str) else tokens

    async def decide(self, model: TextModel, services: Services) -> tuple[list[LabelChances], Usage]:
        """Returns what is read for each question by the held model, and the usage of all. Raises RequestError."""
        head, *rest = self.questions
        reads = Reads.of(model)
        labels = list(dict.fromkeys(label for question in self.questions for label in question.labels))
        first_prompt = await self._with_media(self.prompt(head), reads, services)
        generate = partial(self._generate, model, await _tokens(model, first_prompt, labels))

        async def start(prompt: ChatPrompt) -> Generation:
            return await generate(await self._with_media(prompt, reads, services))

        # The first generation fills the prefix cache for the others.
        generation, most = await generate(first_prompt), model.config.max_queued_tokens_per_client
        tokens = generation.prompt_tokens
        try:
            if rest:
                check_common(tokens, self.own_bytes(head, tokens), len(self.questions), most)
        except BaseException:
            await generation.aclose()
            raise
        first, usage = await collect_each([generation])
        others, more = await collect_each(await start_all(map(self.prompt, rest), start, most - tokens) if rest else [])
        found = [
            _reading(choice, labels, question)
            for question, choice in zip(self.questions, [*first, *others], strict=True)
        ]
        return found, total_usage((usage, more))

    async def _with_media(self, prompt: ChatPrompt, reads: Reads, services: Services) -> ChatPrompt:
        """Reads the files in a prompt, and returns the prompt with the results. Raises RequestError."""
        with errors_of_input(self.place):
            [loaded] = await load_media([prompt], [PLACE], reads, services)
        return loaded

    async def _generate(self, model: TextModel, tokens: tuple[int, ...], prompt: ChatPrompt) -> Generation:
        """Starts the generation of one token with the log probabilities of `tokens`. Raises RequestError."""
        sampling = SamplingParams(
            max_tokens=1, temperature=0.0, logprobs=True, logprob_token_ids=tokens, cache_salt=self.cache_salt
        )
        return await model.start(prompt, sampling, OutputParams(), priority=self.priority)


async def _tokens(model: TextModel, prompt: ChatPrompt, labels: list[str]) -> tuple[int, ...]:
    """Returns the token of each label at the beginning of a reply. Raises RequestError."""
    tail = (await model.render(prompt))[-TAIL:]
    before, *after = await model.encode([tail, *(tail + label for label in labels)], False)
    tokens = tuple(ids[-1] for ids in after if ids[:-1] == before)
    if len(set(tokens)) != len(labels):
        raise BadRequest(
            f"this model's tokenizer does not have one token for each of {', '.join(labels)}, which decisions need",
            param="model",
            code="not_supported",
        )
    return tokens


def _reading(choice: CompletedChoice, labels: list[str], question: Labelled) -> LabelChances:
    """Returns the probabilities of a question's labels, which are some of `labels`, as the answer reports them."""
    [first] = choice.logprobs
    known = {label: (top.id, top.logprob) for label, top in zip(labels, first.top, strict=False)}
    own = [known[label] for label in question.labels]
    chances = [math.exp(-math.inf if logprob is None else logprob) for _, logprob in own]
    return LabelChances(chances, first.id in [token for token, _ in own])

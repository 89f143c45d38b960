"""Turns a Submit into a Request that the pipeline can take, or raises BadRequest. Runs between two steps.

Here a request gets its limits: how many tokens it may generate, what ends it, how many sequences it takes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Sized
from dataclasses import replace
from typing import TypeVar

from ...engine_types import ModelInfo
from ...errors import BadRequest, too_long, too_many_characters
from ...types import CAPABILITIES, SamplingParams
from ..protocol import Submit
from . import image_prompts, validation
from .kv_budget import KvBudget
from .pipeline import ASSISTANT_TOKENS, NGRAM_SIZE, Pipeline, Thinking
from .sequence import Request, Sequence

LONG_TEXT = 8
"""Characters per token of the context, above which only a part of a text is tokenized first; prose has 3 to 5."""
CUT_MARGIN = 64
"""Tokens next to a cut that may differ from those of the whole text."""
UNCHANGED = SamplingParams()
Part = TypeVar("Part", str, list[int], "array[int]")
BEAM_SPARE_BLOCKS = 2
"""Blocks per beam beyond its own tokens: the copy of a shared block that is written to, and one for rounding."""


Ids = TypeVar("Ids", bound=Sized)
BadWords = tuple[tuple[int, ...], ...]


class Admission:
    """Checks requests against one pipeline. max_sequences: of one request."""

    def __init__(self, pipeline: Pipeline, max_sequences: int) -> None:
        self._pipeline = pipeline
        self._max_sequences = max_sequences
        self._max_characters = pipeline.info.context_length * pipeline.vocabulary.longest

    def request(self, submit: Submit, tokens: list[int] | None = None, bad_words: BadWords | None = None) -> Request:
        """The request with its sequences, not yet queued. tokens, bad_words: if they are known. Raises BadRequest."""
        info = self._pipeline.info
        sampling = validation.sampling(submit.sampling, info.vocab_size, self._max_sequences)
        sampling = _assistant_params(sampling, info)
        _check_capabilities(sampling, submit.sampling, info)
        if sampling.prompt_logprobs and info.prefix_caching and "alternatives" not in info.capabilities:
            raise BadRequest(
                "log probabilities of the prompt need a server that was started with --enable_prefix_caching false",
                param="echo",
            )
        if submit.adapter and "adapters" not in info.capabilities:
            raise BadRequest("this model's pipeline has no adapters for single requests", param="model")
        if submit.constraint:
            sampling = _check_constrained(sampling, info)
        request = Request(submit.id, sampling, set(range(sampling.n)), submit.constraint)
        request.client, request.group_key, request.priority = submit.client, submit.group, submit.priority
        request.adapter = submit.adapter
        if sampling.bad_words:
            encode = self._pipeline.encode
            request.bad_words = bad_words if bad_words is not None else self.bad_words(sampling.bad_words, encode)
        if sampling.thinking_token_budget is not None:
            request.thinking = self._thinking(sampling, sampling.thinking_token_budget)
        counter = self._pipeline.image_token_counter
        if counter is None:
            image_prompts.refuse_images(submit)
            prompt = self.prompt(submit, tokens)
        else:
            request.image_prompt = image_prompts.parse(submit, info.context_length, self._max_characters)
            prompt = image_prompts.placeholder_ids(counter, request.image_prompt, submit.truncate)
            request.prompt_counted = not request.image_prompt.images
        request.sequences = self._sequences(request, prompt)
        first = request.sequences[0]
        first.checked_request = first.pipeline_request()
        self._pipeline.check(first.checked_request)
        return request

    def prompt(self, submit: Submit, tokens: list[int] | None = None) -> list[int]:
        """The prompt's ids. Raises BadRequest for an empty prompt and for ids that do not exist."""
        given = submit.prompt
        if tokens is not None:
            pass
        elif isinstance(given, str):
            tokens = self.encode(given, submit, self._pipeline.encode)
        else:
            tokens = given
            validation.token_ids(tokens, self._pipeline.info.vocab_size, "prompt")
        if submit.truncate is not None:
            if type(submit.truncate) is not int or submit.truncate < 1:
                raise BadRequest("truncate_prompt_tokens is not a positive integer", param="truncate_prompt_tokens")
            if submit.truncation_side not in ("left", "right"):
                raise BadRequest("truncation_side is not left or right", param="truncation_side")
            tokens = kept(tokens, submit.truncate, submit.truncation_side)
        if not tokens:
            raise BadRequest("prompt is empty", param="prompt")
        return tokens

    def encode(self, text: str, submit: Submit, encode: Callable[[str, bool], Ids]) -> Ids:
        """A prompt's text as ids, not truncated yet. Raises BadRequest. Changes nothing: also called in a thread.

        Of a text that is probably too long, tokenizing a part may be enough to decide.
        """
        text, context = self._truncate_text(text, submit), self._pipeline.info.context_length
        if len(text) > LONG_TEXT * context:
            side = "right" if submit.truncate is None else submit.truncation_side
            tokens = encode(kept(text, LONG_TEXT * context, side), submit.add_special_tokens)
            if submit.truncate is None and len(tokens) > context + CUT_MARGIN:
                more = f"Number of prompt tokens: more than {len(tokens) - CUT_MARGIN}"
                raise too_long(f"{more} exceeds model max length: {context}", context)
            if type(submit.truncate) is int and len(tokens) > submit.truncate + CUT_MARGIN:
                return tokens
        return encode(text, submit.add_special_tokens)

    def check_length(self, prompt: int) -> None:
        """Raises BadRequest for a prompt of so many tokens that none can be generated."""
        info = self._pipeline.info
        kv = KvBudget(info.kv_blocks, info.block_size)
        if prompt > min(info.context_length, kv.tokens):
            raise _too_long(info, kv, prompt)

    def _truncate_text(self, text: str, submit: Submit) -> str:
        """The part of a text that may fit the context, by the longest token of the vocabulary.

        No step runs while a text is tokenized: up to 0.7 s for a million characters.
        """
        if len(text) <= self._max_characters:
            return text
        if submit.truncate is not None:
            return kept(text, self._max_characters, submit.truncation_side)
        context = self._pipeline.info.context_length
        raise too_many_characters(len(text), context)

    def bad_words(self, words: Iterable[str], encode: Callable[[str, bool], Iterable[int]]) -> BadWords:
        """The ids of each word at the beginning of a text and after a blank, as in vLLM. Raises BadRequest."""
        found: list[tuple[int, ...]] = []
        for word in words:
            plain = tuple(encode(word.lstrip(), False))
            if not plain:
                raise BadRequest(f"bad_words: {word!r} has no tokens", param="bad_words")
            spaced = tuple(encode(f" {word.lstrip()}", False))
            found.append(plain)
            if spaced[:1] != plain[:1] and len(spaced) == len(plain):  # otherwise the blank is a token of its own
                found.append(spaced)
        return tuple(found)

    def _thinking(self, sampling: SamplingParams, budget: int) -> Thinking:
        start, end = (tuple(self._pipeline.encode(tag, False)) for tag in sampling.thinking_tags)
        if not end or not (start or sampling.thinking_open):
            raise BadRequest("the model's reasoning has no end that could be forced", param="thinking_token_budget")
        return Thinking(budget, start, end, sampling.thinking_open)

    def _sequences(self, request: Request, prompt: list[int]) -> list[Sequence]:
        sampling, info = request.sampling, self._pipeline.info
        headroom = 1 + (sampling.num_assistant_tokens or (ASSISTANT_TOKENS if info.speculative else 0))
        kv = KvBudget(info.kv_blocks, info.block_size)
        most = _most_new_tokens(info, kv, len(prompt), headroom)
        reserved_blocks = 0
        if sampling.beams > 1:
            most = min(most, _most_beam_tokens(kv, len(prompt), sampling.beams))
        if most < 1:
            raise _too_long(info, kv, len(prompt))
        max_tokens = most if sampling.max_tokens is None else min(sampling.max_tokens, most)
        if sampling.beams > 1:
            blocks_per_beam = kv.blocks(max_tokens) + BEAM_SPARE_BLOCKS
            reserved_blocks = kv.blocks(len(prompt)) + sampling.beams * blocks_per_beam
        stops = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stops |= frozenset(info.eos_token_ids)
        count = 1 if sampling.beams > 1 else sampling.n
        alternatives = sampling.prompt_logprobs or sampling.top_logprobs or sampling.logprob_token_ids
        details = bool(alternatives) and "alternatives" in info.capabilities
        return [
            Sequence(
                request,
                index,
                prompt,
                max_tokens,
                stops,
                headroom,
                reserved_blocks,
                echo=sampling.prompt_logprobs and index == 0,
                details=details,
            )
            for index in range(count)
        ]


def _check_capabilities(sampling: SamplingParams, given: Collection[str], info: ModelInfo) -> None:
    """Refuse what this pipeline would not honour; the front end does not send it. Raises BadRequest."""
    for name, capability in CAPABILITIES.items():
        unable = name in given and capability not in info.capabilities
        if unable and getattr(sampling, name) != getattr(UNCHANGED, name):
            raise BadRequest(f"{name} is not supported by this model's pipeline", param=name)
    if sampling.prompt_logprobs and sampling.beams > 1 and "alternatives" not in info.capabilities:
        raise BadRequest("log probabilities of the prompt cannot be combined with beam search", param="best_of")


def _check_constrained(sampling: SamplingParams, info: ModelInfo) -> SamplingParams:
    """Refuse what GenAI cannot combine with a grammar: beams ignore it, min_tokens is filled with token 0 at its end.

    ignore_eos is dropped: anything at all could follow the end of the grammar, so generation ends there.
    """
    if "beam_control" in info.capabilities:
        return replace(sampling, ignore_eos=False)
    if sampling.beams > 1:
        raise BadRequest("structured output cannot be combined with beam search (best_of > 1)", param="best_of")
    if sampling.min_tokens:
        raise BadRequest("structured output cannot be combined with min_tokens", param="min_tokens")
    return replace(sampling, ignore_eos=False)


def _most_new_tokens(info: ModelInfo, kv: KvBudget, prompt: int, headroom: int) -> int:
    """Tokens that context and cache leave to one sequence after its prompt."""
    return min(info.context_length - prompt, kv.tokens - prompt - headroom + 1)


def _most_beam_tokens(kv: KvBudget, prompt: int, beams: int) -> int:
    blocks_each = (kv.total - kv.blocks(prompt)) // beams - BEAM_SPARE_BLOCKS
    return blocks_each * kv.block_size


def _too_long(info: ModelInfo, kv: KvBudget, prompt: int) -> BadRequest:
    most = min(info.context_length, kv.tokens)
    if prompt > most:
        text = f"Number of prompt tokens: {prompt} exceeds model max length: {most}"
    else:
        text = f"Number of prompt tokens: {prompt} leaves no room to generate within model max length: {most}"
    return too_long(text, most)


def kept(prompt: Part, most: int, side: str) -> Part:
    """At most so many characters or ids, without those of one side, "left" or "right"."""
    return prompt[:most] if side == "right" else prompt[-most:]


def _assistant_params(sampling: SamplingParams, info: ModelInfo) -> SamplingParams:
    """The fields of speculative decoding as the pipeline needs them: set in a speculative one, zero in others."""
    if not info.speculative or (sampling.beams > 1 and "beam_control" in info.capabilities):  # whose beams do not guess
        if not (sampling.num_assistant_tokens or sampling.assistant_confidence_threshold or sampling.max_ngram_size):
            return sampling
        return replace(sampling, num_assistant_tokens=0, assistant_confidence_threshold=0.0, max_ngram_size=0)
    if sampling.beams > 1:
        raise BadRequest("beam search is not possible with speculative or prompt lookup decoding", param="best_of")
    if info.speculative == "draft":
        unset = not sampling.num_assistant_tokens and not sampling.assistant_confidence_threshold
        return replace(sampling, num_assistant_tokens=ASSISTANT_TOKENS, max_ngram_size=0) if unset else sampling
    return replace(
        sampling,
        num_assistant_tokens=sampling.num_assistant_tokens or ASSISTANT_TOKENS,
        assistant_confidence_threshold=0.0,
        max_ngram_size=sampling.max_ngram_size or NGRAM_SIZE,
    )

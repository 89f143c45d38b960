"""A Submit to a Request that the pipeline can take, or a BadRequest that says why not. Runs between two steps.

Here a request gets its limits: how much it may generate at most, what ends it, how many engine requests it takes.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import BadRequest, too_long
from ...types import ModelInfo, SamplingParams
from ..protocol import Submit
from . import image_prompts, validation
from .kv_budget import KvBudget
from .pipeline import ASSISTANT_TOKENS, NGRAM_SIZE, Pipeline
from .sequence import Request, Sequence

LONG = 8
"""Characters for each token of the context, of a text that is looked at in part first; prose has 3 to 5."""
MARGIN = 64
"""Tokens at a cut that may be others than those of the whole text."""
BEAM_SPARE_BLOCKS = 2
"""Blocks per beam beyond its own tokens: the copy of a shared block that is written to, and one for rounding."""


class Admission:
    """Checks requests against one pipeline."""

    def __init__(self, pipeline: Pipeline, most_sequences: int) -> None:
        self._pipeline = pipeline
        self._most_sequences = most_sequences
        self._most_characters = pipeline.info.context_length * pipeline.vocabulary.longest

    def request(self, submit: Submit) -> Request:
        """The request with its sequences, not yet queued. Raises BadRequest."""
        info = self._pipeline.info
        sampling = validation.sampling(submit.sampling, info.vocab_size, self._most_sequences)
        sampling = _assisted(sampling, info)
        if sampling.prompt_logprobs and info.prefix_caching:
            raise BadRequest(
                "log probabilities of the prompt need a server that was started with --enable_prefix_caching false",
                param="echo",
            )
        if submit.constraint:
            sampling = _constrained(sampling)
        request = Request(submit.id, sampling, set(range(sampling.n)), submit.constraint)
        if self._pipeline.sight is None:
            image_prompts.refuse(submit)
            prompt = self.prompt(submit)
        else:
            request.scene = image_prompts.read(submit, self._most_characters)
            prompt = image_prompts.lay_out(self._pipeline.sight, request.scene, submit.truncate)
            request.counted = not request.scene.images
        request.sequences = self._sequences(request, prompt)
        self._pipeline.check(request.sequences[0].work())
        return request

    def prompt(self, submit: Submit) -> list[int]:
        """The prompt's ids. Raises BadRequest for an empty prompt and for ids that do not exist."""
        tokens = submit.prompt
        if isinstance(tokens, str):
            tokens = self._encoded(tokens, submit)
        else:
            validation.token_ids(tokens, self._pipeline.info.vocab_size, "prompt")
        if submit.truncate is not None:
            if type(submit.truncate) is not int or submit.truncate < 1:
                raise BadRequest("truncate_prompt_tokens is not a positive integer", param="truncate_prompt_tokens")
            tokens = tokens[-submit.truncate :]
        if not tokens:
            raise BadRequest("prompt is empty", param="prompt")
        return tokens

    def _encoded(self, text: str, submit: Submit) -> list[int]:
        """A prompt's text as ids; of one that is longer than prompts of this context are, a part may tell enough."""
        text, context = self._short_enough(text, submit.truncate), self._pipeline.info.context_length
        if len(text) > LONG * context:
            part = text[: LONG * context] if submit.truncate is None else text[-LONG * context :]
            tokens = self._pipeline.encode(part, submit.add_special_tokens)
            if submit.truncate is None and len(tokens) > context + MARGIN:
                more = f"Number of prompt tokens: more than {len(tokens) - MARGIN}"
                raise too_long(f"{more} exceeds model max length: {context}", context)
            if type(submit.truncate) is int and len(tokens) > submit.truncate + MARGIN:
                return tokens
        return self._pipeline.encode(text, submit.add_special_tokens)

    def _short_enough(self, text: str, truncate: int | None) -> str:
        """Text that may fit the context. A token is at most so many characters, and tokenizing stops everybody:
        up to 0.7 s for a million characters.
        """
        if len(text) <= self._most_characters:
            return text
        if truncate is not None:
            return text[-self._most_characters :]
        context = self._pipeline.info.context_length
        raise too_long(f"Number of prompt characters: {len(text)} exceeds model max length: {context} tokens", context)

    def _sequences(self, request: Request, prompt: list[int]) -> list[Sequence]:
        sampling, info = request.sampling, self._pipeline.info
        headroom = 1 + (sampling.num_assistant_tokens or (ASSISTANT_TOKENS if info.speculative else 0))
        accounts = KvBudget(info.kv_blocks, info.block_size)
        room = _room(info, accounts, len(prompt), headroom)
        reserve = 0
        if sampling.beams > 1:
            room = min(room, _beam_room(accounts, len(prompt), sampling.beams))
        if room < 1:
            raise _too_long(info, accounts, len(prompt))
        limit = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        if sampling.beams > 1:
            each = accounts.blocks(limit) + BEAM_SPARE_BLOCKS
            reserve = accounts.blocks(len(prompt)) + sampling.beams * each
        stops = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stops |= frozenset(info.eos_token_ids)
        count = 1 if sampling.beams > 1 else sampling.n
        return [
            Sequence(
                request,
                index,
                prompt,
                limit,
                stops,
                headroom,
                reserve,
                echo=sampling.prompt_logprobs and index == 0,
            )
            for index in range(count)
        ]


def _constrained(sampling: SamplingParams) -> SamplingParams:
    """What a grammar goes together with: beams ignore it, and a least length is filled with token 0 at its end.

    With ignore_eos anything at all would follow the end of the grammar, so that is over when it is over.
    """
    if sampling.beams > 1:
        raise BadRequest("structured output cannot be combined with beam search (best_of > 1)", param="best_of")
    if sampling.min_tokens:
        raise BadRequest("structured output cannot be combined with min_tokens", param="min_tokens")
    return replace(sampling, ignore_eos=False)


def _room(info: ModelInfo, accounts: KvBudget, prompt: int, headroom: int) -> int:
    """Most tokens that one sequence may generate: what context and cache leave after its prompt."""
    return min(info.context_length - prompt, accounts.tokens - prompt - headroom + 1)


def _beam_room(accounts: KvBudget, prompt: int, beams: int) -> int:
    blocks_each = (accounts.total - accounts.blocks(prompt)) // beams - BEAM_SPARE_BLOCKS
    return blocks_each * accounts.block_size


def _too_long(info: ModelInfo, accounts: KvBudget, prompt: int) -> BadRequest:
    most = min(info.context_length, accounts.tokens)
    if prompt > most:
        text = f"Number of prompt tokens: {prompt} exceeds model max length: {most}"
    else:
        text = f"Number of prompt tokens: {prompt} leaves no room to generate within model max length: {most}"
    return too_long(text, most)


def _assisted(sampling: SamplingParams, info: ModelInfo) -> SamplingParams:
    """The assistant's fields as the pipeline needs them: set in an assisted one, zero in a plain one."""
    if not info.speculative:
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

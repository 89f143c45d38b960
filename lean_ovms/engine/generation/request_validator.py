"""Turns a Submit into a GenerationRequest for the backend, or raises BadRequest. Runs between two steps.

The limits of the request are set here: how many tokens it may generate, what ends it, and how many sequences it has.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import replace
from typing import Any, TypeVar

from ...errors import NO_VIDEO, BadRequest, prompt_too_long, too_long, too_many_characters
from ...types import SamplingParams
from ...types.engine import CAPABILITIES, ModelInfo
from ..protocol import Submit
from .backend import ASSISTANT_TOKENS, HEAD_TOKENS, NGRAM_SIZE, Backend
from .fair_queue import GenerationRequest, Thinking

GREEDY_BELOW = 1e-5
"""The highest temperature that means greedy decoding, as in vLLM; one near 0 would divide every logit to infinity."""
MAX_SEED = (1 << 64) - 1
TOKENS = ("stop_token_ids", "logprob_token_ids", "allowed_token_ids")


LONG_TEXT = 8
"""Characters per token of context above which a part of a text is tokenized first; prose has 3 to 5."""
CUT_MARGIN = 64
"""The number of tokens next to a cut that may differ from those of the whole text."""
TEXT_ONLY = "This servable supports only text input, but image_url has been provided"
NOT_TRUNCATED = "truncate_prompt_tokens is not supported for prompts of models with vision"
UNCHANGED = SamplingParams()
Part = TypeVar("Part", str, list[int], "array[int]")
BEAM_SPARE_BLOCKS = 2
"""Blocks per beam beyond those for its tokens: the copy of a shared block that is written to, and one for rounding."""


Ids = TypeVar("Ids", bound=Sized)
BadWords = tuple[tuple[int, ...], ...]


class RequestValidator:
    """Checks requests for one model."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._max_characters = backend.info.context_length * backend.vocabulary.longest

    def request(
        self, submit: Submit, tokens: list[int] | None = None, bad_words: BadWords | None = None
    ) -> GenerationRequest:
        """Checks a command, and returns its request, which is not queued yet.

        Args:
            submit: The command.
            tokens: The token ids of the prompt; None to tokenize it here.
            bad_words: The token ids of the bad words; None to tokenize them here.

        Raises:
            BadRequest: The request is not valid for this model.
        """
        backend, info = self._backend, self._backend.info
        sampling = read_sampling(submit.sampling, info.vocab_size)
        sampling = _assistant_params(sampling, info)
        _check_capabilities(sampling, submit, info)
        if submit.constraint and sampling.ignore_eos:  # anything at all could follow the end of the grammar
            sampling = replace(sampling, ignore_eos=False)
        request = GenerationRequest(submit.id, sampling, set(range(sampling.n)), submit.constraint)
        request.client, request.group_key, request.priority = submit.client, submit.group, submit.priority
        request.adapter = submit.adapter
        if sampling.bad_words:
            encode = backend.encode
            request.bad_words = bad_words if bad_words is not None else self.bad_words(sampling.bad_words, encode)
        if sampling.thinking_token_budget is not None:
            request.thinking = self._thinking(sampling, sampling.thinking_token_budget)
        if any(submit.image_times) and not info.video:
            raise BadRequest(NO_VIDEO, param="messages")
        if submit.audio and not info.audio:
            raise BadRequest("this model does not accept audio", param="messages")
        placeholders, images = backend.image_placeholders, bool(submit.images or submit.pixels)
        if placeholders is None or (placeholders.takes_ids and not images):
            if placeholders is None and (images or submit.audio):
                raise BadRequest(TEXT_ONLY, param="messages")
            request.prompt = self.prompt(submit, tokens)
        else:
            image_prompt = placeholders.parse(submit, info.context_length, self._max_characters)
            request.prompt = placeholders.placeholder_ids(image_prompt)
            if submit.truncate is not None and submit.truncate < len(request.prompt):
                raise BadRequest(NOT_TRUNCATED, param="truncate_prompt_tokens")
            request.image_prompt, request.prompt_counted = image_prompt, not image_prompt.images
        self._limit(request)
        backend.check(request)
        return request

    def prompt(self, submit: Submit, tokens: list[int] | None = None) -> list[int]:
        """Returns the token ids of a prompt. Raises BadRequest if there are none, or any outside the vocabulary."""
        given = submit.prompt
        if tokens is not None:
            pass
        elif isinstance(given, str):
            tokens = self.encode(given, submit, self._backend.encode)
        else:
            tokens = given
            check_token_ids(tokens, self._backend.info.vocab_size, "prompt")
        if submit.truncate is not None:
            tokens = kept(tokens, submit.truncate, submit.truncation_side)
        if not tokens:
            raise BadRequest("prompt is empty", param="prompt")
        return tokens

    def encode(self, text: str, submit: Submit, encode: Callable[[str, bool], Ids]) -> Ids:
        """Returns the token ids of a prompt's whole text. Raises BadRequest. Any thread may call it.

        If a text is probably too long, a part of it is tokenized first, which may show that. A text that cannot fit
        even if all its tokens are the longest of the vocabulary is refused without that, since a million characters
        take up to 0.7 s.

        Args:
            text: The text.
            submit: The command with the prompt.
            encode: The tokenizer.
        """
        context = self._backend.info.context_length
        if len(text) > self._max_characters:
            if submit.truncate is None:
                raise too_many_characters(len(text), context)
            text = kept(text, self._max_characters, submit.truncation_side)
        if len(text) > LONG_TEXT * context:
            side = "right" if submit.truncate is None else submit.truncation_side
            tokens = encode(kept(text, LONG_TEXT * context, side), submit.add_special_tokens)
            if submit.truncate is None and len(tokens) > context + CUT_MARGIN:
                more = f"Number of prompt tokens: more than {len(tokens) - CUT_MARGIN}"
                raise too_long(f"{more} exceeds model max length: {context}", context)
            if submit.truncate is not None and len(tokens) > submit.truncate + CUT_MARGIN:
                return tokens
        return encode(text, submit.add_special_tokens)

    def check_length(self, prompt: int) -> None:
        """Raises BadRequest if a prompt of this number of tokens leaves no room for a generated token."""
        info = self._backend.info
        if prompt > min(info.context_length, info.kv_blocks * info.block_size):
            raise _too_long(info, prompt)

    def bad_words(self, words: Iterable[str], encode: Callable[[str, bool], Iterable[int]]) -> BadWords:
        """Returns the ids of each bad word, in front of a text and after a blank, as vLLM does. Raises BadRequest."""
        found: list[tuple[int, ...]] = []
        for word in words:
            plain = tuple(encode(word.lstrip(), False))
            if not plain:
                raise BadRequest(f"bad_words: {word!r} has no tokens in this model's vocabulary", param="bad_words")
            spaced = tuple(encode(f" {word.lstrip()}", False))
            found.append(plain)
            if spaced[:1] != plain[:1] and len(spaced) == len(plain):  # otherwise the blank is a token of its own
                found.append(spaced)
        return tuple(found)

    def _thinking(self, sampling: SamplingParams, budget: int) -> Thinking:
        start, end = (tuple(self._backend.encode(tag, False)) for tag in sampling.thinking_tags)
        if not end or not (start or sampling.thinking_open):
            raise BadRequest(
                "thinking_token_budget is not supported: no tokens are known that end this model's reasoning",
                param="thinking_token_budget",
            )
        return Thinking(budget, start, end, sampling.thinking_open)

    def _limit(self, request: GenerationRequest) -> None:
        """Sets the request's limit of generated tokens and its stop tokens. Raises BadRequest."""
        sampling, info, prompt = request.sampling, self._backend.info, len(request.prompt)
        drafted = sampling.num_assistant_tokens or (ASSISTANT_TOKENS if info.speculative else 0)
        most = min(info.context_length - prompt, info.kv_blocks * info.block_size - prompt - drafted)
        if sampling.beams > 1:
            blocks_each = (info.kv_blocks - -(-prompt // info.block_size)) // sampling.beams - BEAM_SPARE_BLOCKS
            most = min(most, blocks_each * info.block_size)
        if most < 1:
            raise _too_long(info, prompt)
        request.max_tokens = most if sampling.max_tokens is None else min(sampling.max_tokens, most)
        request.stops = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            request.stops |= frozenset(info.eos_token_ids)
        request.details = bool(sampling.prompt_logprobs or sampling.top_logprobs or sampling.logprob_token_ids)


def _check_capabilities(sampling: SamplingParams, submit: Submit, info: ModelInfo) -> None:
    """Raises BadRequest if a request asks for what this engine ignores, which the front end does not send."""
    for name, capability in CAPABILITIES.items():
        unable = name in submit.sampling and capability not in info.capabilities
        if unable and getattr(sampling, name) != getattr(UNCHANGED, name):
            raise BadRequest(f"{name} is not supported by this model's pipeline", param=name)
    if submit.adapter and "adapters" not in info.capabilities:
        raise BadRequest("this model's pipeline does not support LoRA adapters of single requests", param="model")


def _too_long(info: ModelInfo, prompt: int) -> BadRequest:
    return prompt_too_long(prompt, min(info.context_length, info.kv_blocks * info.block_size))


def kept(prompt: Part, most: int, side: str) -> Part:
    """Returns `most` characters or ids of a prompt, of which `side`, "left" or "right", is cut off."""
    return prompt[:most] if side == "right" else prompt[-most:]


def _assistant_params(sampling: SamplingParams, info: ModelInfo) -> SamplingParams:
    """Returns the parameters with the fields for draft tokens, which are zero in beam search and without drafts."""
    if not info.speculative or sampling.beams > 1:
        if not (sampling.num_assistant_tokens or sampling.assistant_confidence_threshold or sampling.max_ngram_size):
            return sampling
        return replace(sampling, num_assistant_tokens=0, assistant_confidence_threshold=0.0, max_ngram_size=0)
    if info.speculative != "prompt_lookup":
        unset = not sampling.num_assistant_tokens and not sampling.assistant_confidence_threshold
        most = HEAD_TOKENS if info.speculative in ("mtp", "eagle3") else ASSISTANT_TOKENS
        return replace(sampling, num_assistant_tokens=most, max_ngram_size=0) if unset else sampling
    return replace(
        sampling,
        num_assistant_tokens=sampling.num_assistant_tokens or ASSISTANT_TOKENS,
        assistant_confidence_threshold=0.0,
        max_ngram_size=sampling.max_ngram_size or NGRAM_SIZE,
    )


def read_sampling(fields: dict[str, Any], vocab_size: int) -> SamplingParams:
    """Returns the sampling fields of a Submit as SamplingParams. Raises BadRequest for an id outside the vocabulary.

    Types and ranges are checked where the request is read (api/fields.py), so each SamplingParams here is complete and
    in range. Ids outside the vocabulary are checked here because openvino_genai accepts them and then crashes or
    corrupts the pipeline: a stop id far outside writes out of bounds, and one in a prompt with a repetition penalty
    makes the step of all requests throw.
    """
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    params = SamplingParams(**{**fields, **lists})
    params.logit_bias = tuple((token, bias) for token, bias in params.logit_bias)
    for name in TOKENS:
        if ids := getattr(params, name):
            check_token_ids(ids, vocab_size, name)
    if params.logit_bias:
        check_token_ids([token for token, _ in params.logit_bias], vocab_size, "logit_bias")
    return params


def check_token_ids(tokens: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises BadRequest naming the first id that is not in range(vocab_size)."""
    if not tokens or (min(tokens) >= 0 and max(tokens) < vocab_size):  # in C: 4,000 ids in 60 us
        return
    # The error names the id, not its position, which would refer to one of several prompts, or not exist in a mapping.
    token = next(token for token in tokens if not 0 <= token < vocab_size)
    raise BadRequest(f"{param}: {token} is not a token id in [0, {vocab_size})", param=param)

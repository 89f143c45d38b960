"""Turns a request's inputs into checked token ids with special tokens: templates, truncation, limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ....engine.generation.image_prompts import checked_image
from ....errors import TOO_LONG, BadRequest, too_long
from ....types import Image, all_pixels
from ..records import Pool
from ..types import IMAGES_ALONE, PoolingParams, TextOrTokens, TextWithImages
from .pooler import Pooler, Prompt

Input = TextOrTokens | TextWithImages
"""A single input, or the second half of a pair."""
NO_IMAGES = "This model reads text only"


def with_images(command: Pool) -> list[Input]:
    """Returns the inputs of a request, with the images that belong to a text attached to it. Raises BadRequest."""
    images: dict[int, list[Image]] = {}
    found = all_pixels(command.image_digests, command.pixels)
    for (at, *size), pixels, param in zip(command.images, found, command.image_params, strict=True):
        images.setdefault(at, []).append(checked_image(size, pixels, param))
    return [
        TextWithImages(one, tuple(images[at])) if at in images and isinstance(one, str) else one
        for at, one in enumerate(command.inputs)
    ]


def check_ids(tokens: Sequence[int], size: int, param: str | None = None) -> None:
    """Raises BadRequest if an id is outside a vocabulary of `size` tokens, with vLLM's text and the allowed range."""
    if tokens and not (min(tokens) >= 0 and max(tokens) < size):
        wrong = next(token for token in tokens if not 0 <= token < size)
        raise BadRequest(f"Token id {wrong} is out of vocabulary: ids are from 0 to {size - 1}", param=param)


class InputBuilder:
    """Builds the token ids of inputs for one model."""

    def __init__(self, pooler: Pooler) -> None:
        self._info = pooler.pooling
        self._vocab_size = pooler.info.vocab_size
        self._template = pooler.template
        self._prompt: Prompt | None = pooler.prompt
        self._vision = pooler.vision
        self._pooler = pooler
        self._prompt_tokens: dict[tuple[str, bool], int] = {}

    def texts(self, inputs: Sequence[Input], queries: Sequence[TextOrTokens], params: PoolingParams) -> list[str]:
        """Returns the texts that have to be tokenized, in the order in which `build` takes their tokens.

        Args:
            inputs: The inputs; those that are token ids give no text.
            queries: The first halves of pairs: one for each input, or one for all; empty if the inputs are not pairs.
            params: How the inputs are encoded, with the instruction for a model that takes a pair as a prompt.

        Raises:
            BadRequest: The model does not take such inputs.
        """
        if queries and self._prompt is not None:
            if any(not isinstance(one, str) for one in (*inputs, *queries)):
                raise BadRequest("This model reads pairs of texts, not of token ids")
            instruction = params.instruction
            if instruction and not self._prompt.instructed:
                raise BadRequest("The prompt of this model has no instruction", param="instruction")
            text = self._prompt.instructed if instruction else self._prompt.body
            return [
                text.format(instruction=instruction, query=queries[at % len(queries)], document=one)
                for at, one in enumerate(inputs)
            ]
        return [self._cased(self._text(one)) for one in (*queries, *inputs) if not isinstance(one, list)]

    def _text(self, one: str | TextWithImages) -> str:
        if isinstance(one, str):
            return one
        if self._vision is None:
            raise BadRequest(NO_IMAGES, param=one.images[0].param)
        return self._vision.text(one.text, one.images)

    def build(
        self, inputs: Sequence[Input], queries: Sequence[TextOrTokens], encoded: list[list[int]], params: PoolingParams
    ) -> list[tuple[list[int], list[int] | None]]:
        """Returns the token ids of each input with its special tokens, and their token types (None if all are 0).

        Args:
            inputs: The inputs.
            queries: The first halves of pairs: one for each input, or one for all; empty if the inputs are not pairs.
            encoded: The token ids of the texts that the method `texts` returned for the same inputs.
            params: How the inputs are encoded.

        Raises:
            BadRequest: An input is empty, too long, has wrong ids, or is of a kind that the model does not take. Its
                `param` is the input's index, such as "[3]", which the front end puts after the name of the field.
        """
        if queries and self._prompt is not None:
            prefix, suffix = self._prompt.prefix, self._prompt.suffix
            return [(self._single(ids, params, prefix, suffix, at), None) for at, ids in enumerate(encoded)]
        rest = iter(encoded)
        if queries:
            heads = [next(rest) if isinstance(one, str) else self._ids(one, at) for at, one in enumerate(queries)]
            bodies = [next(rest) if isinstance(one, str) else self._ids(one, at) for at, one in enumerate(inputs)]
            return [self._pair(heads[at % len(heads)], body, params, at) for at, body in enumerate(bodies)]
        around = self._template.single if params.add_special_tokens else ((), ())
        return [(self._one(one, rest, params, around, at), None) for at, one in enumerate(inputs)]

    def unpooled(self, params: PoolingParams) -> int:
        """Returns how many tokens at the beginning of each text do not count in its pooled vector.

        They are counted as in sentence-transformers: the tokens of the prompt alone with the special tokens before it.
        If the last of these tokens is a special one, it does not belong to the prompt.
        """
        key = params.unpooled, params.add_special_tokens
        if params.unpooled and key not in self._prompt_tokens:
            [ids] = self._pooler.tokenize([self._cased(params.unpooled)])
            before, after = self._template.single if params.add_special_tokens else ((), ())
            whole = [*before, *ids, *after]
            is_special = bool(after) or (whole[-1:] and whole[-1] in self._pooler.vocabulary.special)
            self._prompt_tokens[key] = len(whole) - bool(is_special)
        return self._prompt_tokens[key] if params.unpooled else 0

    def _cased(self, text: str) -> str:
        return text.lower() if self._info.lower_case else text

    def _one(
        self,
        one: Input,
        encoded: Iterator[list[int]],
        params: PoolingParams,
        around: tuple[tuple[int, ...], tuple[int, ...]],
        at: int,
    ) -> list[int]:
        """Returns the token ids of an input that is not a pair. An input with images is not truncated.

        Args:
            one: The input.
            encoded: The token ids of the texts; the next of them are taken unless the input is token ids itself.
            params: How the inputs are encoded.
            around: The special tokens before and after a text.
            at: The number of the input, for errors.

        Raises:
            BadRequest: The input is empty, too long, or has wrong ids.
        """
        if isinstance(one, str):
            return self._single(next(encoded), params, *around, at)
        if isinstance(one, list):
            return self._single(self._ids(one, at), params, (), (), at)
        assert self._vision is not None, "its text was made"
        ids = self._vision.ids(next(encoded), one.images)
        around = ((), ()) if self._info.images == IMAGES_ALONE else around
        return self._single(ids, replace(params, truncate=None), *around, at)

    def _ids(self, tokens: list[int] | TextWithImages, at: int) -> list[int]:
        """Returns the token ids of input number `at`. Raises BadRequest for wrong ones, which no network notices."""
        if isinstance(tokens, TextWithImages):
            raise BadRequest("pairs cannot contain images", param=tokens.images[0].param)
        check_ids(tokens, self._vocab_size, f"[{at}]")
        return tokens

    def _single(
        self, ids: list[int], params: PoolingParams, prefix: tuple[int, ...], suffix: tuple[int, ...], at: int
    ) -> list[int]:
        room = self._room(len(ids), len(prefix) + len(suffix), params, at)
        return [*prefix, *_cut(ids, room, params), *suffix]

    def _pair(
        self, query: list[int], document: list[int], params: PoolingParams, at: int
    ) -> tuple[list[int], list[int] | None]:
        if self._template.pair is None:
            raise BadRequest("This model reads single inputs, not pairs")
        parts = self._template.pair if params.add_special_tokens else ((), (), ())
        before, between, after = parts
        fixed = len(before) + len(between) + len(after)
        size = len(query) + len(document)
        room = self._room(size, fixed, params, at)
        if size > room:  # truncates the longer text first, then both, like longest_first in transformers
            shorter = min(len(query), len(document), room // 2)
            longer = room - shorter
            kept = (shorter, longer) if len(query) <= len(document) else (longer, shorter)
            query, document = (_cut(*one, params) for one in zip((query, document), kept, strict=True))
        ids = [*before, *query, *between, *document, *after]
        if not any(self._template.types):
            return ids, None
        pieces = zip(self._template.types, (before, query, between, document, after), strict=True)
        return ids, [kind for kind, piece in pieces for _ in piece]

    def _room(self, size: int, fixed: int, params: PoolingParams, at: int) -> int:
        """Returns how many tokens of an input may be kept besides its special tokens.

        Args:
            size: The number of the input's tokens without special tokens.
            fixed: The number of the input's special tokens.
            params: The parameters of the request, with its limit of tokens.
            at: The number of the input, for errors.

        Raises:
            BadRequest: The input is empty, longer than allowed, or nothing of it would stay.
        """
        window = self._info.window
        if not size + fixed:
            raise BadRequest("The input has no tokens", param=f"[{at}]")
        limit = window if params.truncate in (None, -1) else min(params.truncate or 0, window)
        room = limit - fixed
        if size <= room:
            return room
        if params.truncate is None:
            raise too_long(f"Input length {size + fixed} longer than allowed {window}", window, f"[{at}]")
        if room <= 0:
            raise BadRequest(
                f"The input has {fixed} tokens that cannot be cut, which leaves no room for its text within {limit} "
                "tokens",
                param=f"[{at}]",
                code=TOO_LONG,
            )
        return room


def _cut(ids: list[int], most: int, params: PoolingParams) -> list[int]:
    """Truncates the ids to `most`, dropping those at the side that the parameters name."""
    return ids[len(ids) - most :] if params.truncation_side == "left" and len(ids) > most else ids[:most]

"""A model that computes vectors, scores or classes: inputs in, numbers out. Knows no HTTP and no JSON bodies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..config import Config
from ..engine.client.engine import EngineClient
from ..engine_types import ModelInfo, Vocabulary
from ..errors import BadRequest, RequestError, RequestTimeout, too_many_characters
from ..observability.logging import safe
from ..observability.records import GenerationRecord, current_record
from ..pooling_types import (
    CLASSIFY,
    EMBED,
    SCORE,
    TOKEN_CLASSIFY,
    TOKEN_EMBED,
    PooledOutput,
    PoolingInfo,
    PoolingInput,
    PoolingParams,
    TextOrTokens,
)
from ..text.decode.detokenizer import Detokenizer
from ..types import ChatPrompt
from .model import Model

if TYPE_CHECKING:
    from .chat_format import ChatFormat

TASKS = {
    "embeddings": ("embeddings", "/v1/embeddings, /v2/embed, /pooling, /rerank and /score"),
    "rerank": ("rerank", "/rerank, /score, /classify and /pooling"),
    "classify": ("classification", "/classify and /pooling"),
    "token_classify": ("token classification", "/pooling"),
}
"""By option task: what error messages call it, and where requests for it go."""
OF_TOKENS = ("embeddings of tokens", "/pooling, /rerank and /score")
"""Task and endpoints of an embedding model that computes a vector for each token."""
VERBS = {
    EMBED: "embeddings",
    SCORE: "rerank",
    CLASSIFY: "classification",
    TOKEN_CLASSIFY: "token classification",
    TOKEN_EMBED: OF_TOKENS[0],
}
MIN_ENCODE_LIMIT = 1 << 20
"""Characters that one request may always have tokenized."""


class PoolingModel(Model):
    """Each method that serves a request resolves the model once (`hold`)."""

    task = "embeddings, rerank or classification"
    endpoints = "/v1/embeddings, /v2/embed, /rerank, /score, /classify and /pooling"

    def __init__(
        self, config: Config, engine: EngineClient | Callable[[], EngineClient] | None = None, base: Model | None = None
    ) -> None:
        super().__init__(config, engine, base)
        self.task, self.endpoints = TASKS.get(config.task, (self.task, self.endpoints))
        self._chat_format: ChatFormat | None = None
        self._measured: tuple[Vocabulary, int] | None = None

    def _import(self) -> None:
        from . import chat_format  # noqa: F401

    def _prepare(self, info: ModelInfo) -> None:
        from .chat_format import ChatFormat

        self._chat_format = ChatFormat(self.config, self.directory, info, self._vocabulary)
        if info.pooling is not None and info.pooling.kind == TOKEN_EMBED:
            self.task, self.endpoints = OF_TOKENS
        elif info.pooling is not None and info.pooling.kind == SCORE and info.pooling.outputs > 1:
            self.endpoints = "/rerank, /score and /pooling"  # its classes are not known

    @property
    def output_modalities(self) -> tuple[str, ...]:
        """The name of its task: "embeddings" and "rerank" are OpenRouter's, too."""
        return (self.config.task,)

    @property
    def pooling(self) -> PoolingInfo:
        """What the model computes. Raises RequestError if it is not loaded."""
        info = self.serving().info.pooling
        assert info is not None
        return info

    def require_kind(self, *kinds: str) -> PoolingModel:
        """This model, of one of these kinds (pooling_types). Raises RequestError: it is another, or not loaded."""
        model = self.serving()
        info = model.info.pooling
        assert info is not None
        if info.kind not in kinds:
            wanted = " or ".join(VERBS[kind] for kind in kinds)
            raise BadRequest(
                f"The model {safe(self.name)!r} does {model.task}, not {wanted}; it is served under {model.endpoints}",
                param="model",
                code="wrong_task",
            )
        return model

    # --- requests

    async def encode(self, inputs: Sequence[PoolingInput], params: PoolingParams) -> list[PooledOutput]:
        """The result of each input, in their order. Inputs are all single or all pairs.

        Cancelled in the engine when the waiting task is. Raises RequestError.
        """
        with await self.hold() as model:
            model._check_characters(inputs, params)
            started, tokens, reason, code = time.monotonic(), 0, "abort", ""
            try:
                limit_s = model.config.request_timeout_s
                outputs = await (model._pool(inputs, params, limit_s) if limit_s else model.engine.pool(inputs, params))
                tokens, reason = sum([one.tokens for one in outputs]), "stop"
                return outputs
            except RequestError as error:
                reason, code = "error", error.code or error.kind
                raise
            finally:
                model._finished(tokens, time.monotonic() - started, reason, code)

    async def _pool(self, inputs: Sequence[PoolingInput], params: PoolingParams, limit_s: float) -> list[PooledOutput]:
        try:
            return await asyncio.wait_for(self.engine.pool(inputs, params), limit_s)
        except asyncio.TimeoutError:
            raise RequestTimeout("the request took longer than this server lets a request take") from None

    def _finished(self, tokens: int, seconds: float, reason: str, code: str) -> None:
        """For the access line and the metrics: like a generation that has no tokens."""
        done = GenerationRecord(
            engine_id=0,
            prompt_tokens=tokens,
            completion_tokens=0,
            ttft_s=None,
            seconds=seconds,
            decode_s=0.0,
            finish_reasons=(reason,),
            error=code,
        )
        if (record := current_record.get()) is not None:
            record.generations.append(done)
        self.metrics.generation_finished(self.name, done, None)

    def _check_characters(self, inputs: Sequence[PoolingInput], params: PoolingParams) -> None:
        """A text that cannot fit is refused before it is tokenized, and without truncation only."""
        info = self.info.pooling
        assert info is not None
        window, longest = info.window, self._longest_token()
        limit = window * longest
        if params.truncate is not None:
            limit = max(MIN_ENCODE_LIMIT, limit)
        total = 0
        for one in inputs:
            count = sum(map(_num_chars, one)) if isinstance(one, tuple) else _num_chars(one)
            if count > limit:
                raise too_many_characters(count, window)
            total += count
        self.check_total(total)

    def check_total(self, characters: int) -> None:
        """Raises BadRequest for inputs of so many characters in all that they have more tokens than a request may."""
        most = self.config.max_pooling_tokens
        if characters > most * self._longest_token():
            raise BadRequest(f"the inputs have {characters} characters in all, which cannot be {most} tokens")

    def _longest_token(self) -> int:
        """Vocabulary.longest, which takes a millisecond, computed once for each vocabulary."""
        vocabulary = self.vocabulary
        if self._measured is None or self._measured[0] is not vocabulary:
            self._measured = vocabulary, vocabulary.longest
        return self._measured[1]

    async def tokenize(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Token ids of each text. Raises RequestError."""
        with await self.hold() as model:
            limit = max(MIN_ENCODE_LIMIT, 4 * model.info.context_length)
            if sum(map(len, texts)) > limit:
                raise BadRequest(f"more than {limit} characters to tokenize", code="context_length_exceeded")
            return await model.engine.encode(texts, add_special_tokens)

    async def detokenize(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """The text of these ids. Raises RequestError."""
        with await self.hold() as model:
            return await model.engine.decode(tokens, skip_special_tokens)

    def token_bytes(self, tokens: list[int]) -> list[bytes]:
        """Each token's own bytes of UTF-8, which may be a part of a character. Raises RequestError."""
        detokenizer = Detokenizer(self.serving().vocabulary, skip_special_tokens=False)
        return [detokenizer.piece(token) for token in tokens]

    def token_strings(self, tokens: list[int]) -> list[str]:
        """Each token's own text; a part of a character shows as U+FFFD. Raises RequestError."""
        return [piece.decode("utf-8", "replace") for piece in self.token_bytes(tokens)]

    async def render(self, prompt: ChatPrompt) -> str:
        """The text of a conversation by the model's chat template. Raises RequestError."""
        with await self.hold() as model:
            if model._chat_format is None:
                raise model.engine.unavailable()
            return await model._chat_format.render(prompt, model.offload)


def _num_chars(one: TextOrTokens) -> int:
    return len(one) if isinstance(one, str) else 0

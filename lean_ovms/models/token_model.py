"""A model with a tokenizer and a chat template: texts become token ids, and ids texts. Knows no HTTP."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..errors import BadRequest
from ..observability.records import current_client
from ..text.decode.detokenizer import Detokenizer, decode_slices
from ..types import ChatPrompt, Prompt, TokenPrompt
from ..types.engine import ModelInfo
from .model import Model

if TYPE_CHECKING:
    from .chat_format import ChatFormat

LONG_DECODE = 4096
"""Ids; more are turned into text by table, where it is exact."""
TOKEN_BYTES = 40
"""Memory of an id and its text."""
MIN_ENCODE_LIMIT = 1 << 20
"""Characters that one request may always have tokenized; models of a long context allow four for each token."""


class TokenModel(Model):
    """Each method that serves a request resolves the model once (`hold`)."""

    _chat_format: ChatFormat | None = None

    @property
    def joins_texts(self) -> bool:
        """Whether the model reads texts in pairs, so that a single text has no special tokens. Raises RequestError."""
        return False

    def _import(self) -> None:
        """Imports what is a third of all imports of the front end, jinja2 among them, while the engine loads, after
        listening.
        """
        from . import chat_format  # noqa: F401

    def _prepare(self, info: ModelInfo) -> None:
        from .chat_format import ChatFormat

        self._chat_format = ChatFormat(self.config, self.directory, info, self._vocabulary)

    @property
    def chat_format(self) -> ChatFormat:
        """The model's chat template and parsers. Raises RequestError until they are known."""
        if self._chat_format is None:
            self.serving()
            raise self.engine.unavailable()
        return self._chat_format

    async def render(self, prompt: ChatPrompt) -> str:
        """Returns the text of the prompt, by the chat template; long work is offloaded. Raises RequestError."""
        with await self.hold(engine=False) as model:
            return await model._render(prompt)

    async def _render(self, prompt: ChatPrompt) -> str:
        return await self.chat_format.render(prompt, self.offload)

    async def token_ids(self, prompt: Prompt) -> list[int]:
        """Returns token ids of a prompt without images, not truncated. Raises RequestError."""
        with await self.hold(engine=False) as model:
            return await model._token_ids(prompt)

    async def _token_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, TokenPrompt):
            return prompt.tokens
        text = await self._render(prompt) if isinstance(prompt, ChatPrompt) else prompt.text
        [tokens] = await self._encode([text], prompt.add_special_tokens)
        return tokens

    async def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Returns token ids of each text. Raises RequestError."""
        with await self.hold(engine=False) as model:
            return await model._encode(texts, add_special_tokens)

    async def _encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        limit = max(MIN_ENCODE_LIMIT, 4 * self.info.context_length)
        if sum(map(len, texts)) > limit:
            raise BadRequest(f"more than {limit} characters to tokenize", code="context_length_exceeded")
        return await self.tokenizer.encode(texts, add_special_tokens, current_client())

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of these ids, by the model's own detokenizer. Raises RequestError."""
        with await self.hold(engine=False) as model:
            return await model._decode(tokens, skip_special_tokens)

    async def _decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Decodes; many ids by table in a thread: the engine would block all its requests, 250,000 ids for 0.1 s."""
        known = self.vocabulary.exact and len(tokens) > LONG_DECODE and max(tokens) < len(self.vocabulary.pieces)
        if not known:
            return await self.tokenizer.decode(tokens, skip_special_tokens)
        work = partial(decode_slices, tokens, Detokenizer(self.vocabulary, skip_special_tokens))
        return await self.offload.run(len(tokens) * TOKEN_BYTES, work)

    def token_bytes(self, tokens: list[int]) -> list[bytes]:
        """Returns each token's own bytes of UTF-8, which may be a part of a character. Raises RequestError."""
        detokenizer = Detokenizer(self.serving().vocabulary, skip_special_tokens=False)
        return [detokenizer.piece(token) for token in tokens]

    def token_strings(self, tokens: list[int]) -> list[str]:
        """Returns each token's own text; a part of a character shows as U+FFFD. Raises RequestError."""
        return [piece.decode("utf-8", "replace") for piece in self.token_bytes(tokens)]

"""The engine of a model whose child is started by the first request: the embedded demo-embed.

What the child would report is known before, so the model is listed and checked against without it.
"""

from __future__ import annotations

from collections.abc import Callable

from ...config import Config
from ...errors import Unavailable
from ...types import ModelInfo, Vocabulary
from .engine import Engine
from .lazy_engine import EngineSlots, LazyEngine


class KnownModel:
    """In place of a base model's engine: what is known of a model before its child runs."""

    vocabulary = Vocabulary(pieces=[], exact=False)

    def __init__(self, info: ModelInfo) -> None:
        self.info = info

    async def encode(self, texts: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]:
        raise self.unavailable()

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        raise self.unavailable()

    def unavailable(self) -> Unavailable:
        """The error for a request that cannot be served now."""
        return Unavailable("The model is being loaded.")


class OnDemandEngine(LazyEngine):
    """Has the interface of engine.Engine."""

    what = "model"

    def __init__(self, config: Config, info: ModelInfo, make: Callable[[Config], Engine] = Engine) -> None:
        super().__init__(config, KnownModel(info), EngineSlots(1), make)

    @property
    def vocabulary(self) -> Vocabulary:
        return self._engine.vocabulary if self._engine is not None else self._base.vocabulary

    async def encode(self, texts: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]:
        """Tokenize, after the child has been started if need be. Raises RequestError."""
        return await (await self._running()).encode(texts, add_special_tokens, client)

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Detokenize, after the child has been started if need be. Raises RequestError."""
        return await (await self._running()).decode(tokens, skip_special_tokens)

"""The tokenizer of a model with the method names of transformers, including the chat template."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from ...api.fields import FieldSet, read
from ...api.generation.common_fields import MESSAGES, OF_TEMPLATE
from ...models.text_model import TokenModel
from ...types import Json
from ..chat.request import text_conversation
from .options import python_errors

T = TypeVar("T")
FIELDS = FieldSet((MESSAGES, *OF_TEMPLATE))
NO_IMAGES = "prompts with images cannot be returned as text"


class AsyncTokenizer:
    """A tokenizer whose methods are awaited, as it is in the engine process. Their errors are those of LLM."""

    def __init__(self, model: TokenModel) -> None:
        self.model = model

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the ids of a text."""
        [ids] = await self.encode_all([text], add_special_tokens)
        return ids

    async def encode_all(self, texts: list[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Returns the ids of each text."""
        with python_errors():
            return await self.model.encode(texts, add_special_tokens)

    async def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """Returns the text of ids."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        with python_errors():
            return await self.model.decode(ids, skip_special_tokens) if ids else ""

    async def apply_chat_template(
        self,
        conversation: list[Json],
        tools: list[Json] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str | list[int]:
        """Renders a conversation with the chat template.

        Args:
            conversation: The messages.
            tools: The tools that the template shows.
            tokenize: Whether to return ids instead of a text.
            add_generation_prompt: Whether the beginning of an answer is appended.
            continue_final_message: Whether the last message stays open, to be continued.
            variables: Further variables of the template, such as enable_thinking.
        """
        body = {
            "messages": conversation,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "chat_template_kwargs": variables or None,
        }
        with python_errors():
            prompt = text_conversation(read(FIELDS, body), NO_IMAGES, self.model.config.composition)
            return await (self.model.token_ids(prompt) if tokenize else self.model.render(prompt))


class Tokenizer:
    """A tokenizer for a program without an event loop."""

    def __init__(self, tokenizer: AsyncTokenizer, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._async, self._run = tokenizer, run
        self._model = tokenizer.model

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the ids of a text."""
        ids: list[int] = self._run(self._async.encode(text, add_special_tokens))
        return ids

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """Returns the text of ids."""
        return str(self._run(self._async.decode(token_ids, skip_special_tokens)))

    def apply_chat_template(
        self, conversation: list[Json], tools: list[Json] | None = None, **options: Any
    ) -> str | list[int]:
        """Renders a conversation with the chat template; the options are those of AsyncTokenizer."""
        found: str | list[int] = self._run(self._async.apply_chat_template(conversation, tools, **options))
        return found

    def __call__(self, text: str | list[str], add_special_tokens: bool = True) -> dict[str, Any]:
        """Returns {"input_ids": ids} for one text or for several."""
        several = [text] if isinstance(text, str) else text
        ids = self._run(self._async.encode_all(several, add_special_tokens))
        return {"input_ids": ids[0] if isinstance(text, str) else ids}

    def __len__(self) -> int:
        return len(self._model.vocabulary.pieces)

    @property
    def chat_template(self) -> str:
        """The source of the chat template; "" if there is none."""
        return self._model.chat_format.template.source

    @property
    def bos_token(self) -> str:
        """The token at the beginning of a text."""
        return self._special("bos_token")

    @property
    def eos_token(self) -> str:
        """The token at the end of a text."""
        return self._special("eos_token")

    @property
    def bos_token_id(self) -> int | None:
        """The id of bos_token; None if there is none."""
        return self._id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        """The id of eos_token; None if there is none."""
        return self._id(self.eos_token)

    def _special(self, name: str) -> str:
        known = self._model.chat_format.template.special_tokens
        return str(known.get(name) or getattr(self._model.info, name))

    def _id(self, token: str) -> int | None:
        pieces = self._model.vocabulary.pieces
        return pieces.index(token.encode()) if token.encode() in pieces else None

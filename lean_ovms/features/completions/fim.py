"""Prompts for models that were trained to fill in the middle of a text.

The order of the parts is that of https://arxiv.org/abs/2409.12186, as in llama.cpp: other files, the text before the
gap, and the text after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

from ...errors import BadRequest, NotFound
from ...models.text_model import TextModel
from ...types import TextPrompt, TokenPrompt
from ...types.engine import Vocabulary
from ..chat.generation import GenerationBody
from .prompt_pieces import INLINE_CUT, MAX_TEXTS, TextCutter, special_texts, tokens_of

NO_TOKENS = "this model has no tokens for filling in the middle of a text"


class Notation(NamedTuple):
    """The special tokens with which a family of models fills in the middle of a text."""

    prefix: str
    """The token that stands before the text in front of the gap."""
    suffix: str
    """The token that stands before the text behind the gap."""
    middle: str
    """The token after which the model writes the text of the gap."""
    repository: str = ""
    """The token before the name of a repository; "" if the family has none."""
    file: str = ""
    """The token before the name of a file; "" if the family has none."""

    def head(self, before: str, files: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Returns the first part of a prompt as pairs of the notation's text and the client's text after it.

        Args:
            before: The text before the gap.
            files: The names and texts of other files.
        """
        parts = [(f"{self.repository}project\n", "")] if self.repository and files else []
        for name, text in files:
            parts += [(self.file, name), ("\n", text)] if self.file else [("", text), ("\n\n", "")]
        if self.file and files:
            parts.append((f"{self.file}filename\n", ""))
        return [*parts, (self.prefix, before)]

    def tail(self, behind: str) -> list[tuple[str, str]]:
        """Returns the rest of a prompt, with the text after the gap, in the form of `head`."""
        return [(self.suffix, behind), (self.middle, "")]


NOTATIONS = (
    Notation("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"),  # Qwen
    Notation("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>"),  # StarCoder 2
    Notation("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>", "<filename>"),  # StarCoder, Granite
    Notation("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    Notation("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    Notation("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", file="<|file_separator|>"),  # CodeGemma
    Notation("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    Notation("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
)
ENDS = (
    *("<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|file_separator|>", "<fim_pad>"),
    *("<file_sep>", "<filename>", "<reponame>", "<repo_name>", "<｜end▁of▁sentence｜>", "<|user|>"),
)
"""Tokens that end a filled-in text, even if they do not end a text of the model otherwise."""


class Filling(NamedTuple):
    """The notation with which a model fills in the middle of a text."""

    notation: Notation
    """The tokens that stand before, between and after the parts of such a prompt."""
    ends: tuple[int, ...]
    """The ids of the tokens that end the text of the gap."""
    cutter: TextCutter
    """Cuts code with the text of a special token, which is tokenized as text, as in llama.cpp."""

    async def prompts(
        self, model: TextModel, before: Sequence[TextPrompt], behind: str, files: Sequence[tuple[str, str]] = ()
    ) -> Iterator[TextPrompt | TokenPrompt]:
        """Returns prompts for the text of a gap. They are made one by one, as each contains the text after the gap.

        Args:
            model: The model.
            before: The text before the gap, for each prompt.
            behind: The text after the gap.
            files: The names and texts of other files.

        Raises:
            RequestError: A text cannot be tokenized.
        """

        def pieces() -> tuple[list[list[str]], list[str]]:
            heads = [self._pieces(self.notation.head(prompt.text, files)) for prompt in before]
            return heads, self._pieces(self.notation.tail(behind))

        texts = (behind, *(prompt.text for prompt in before), *(text for file in files for text in file))
        heads, tail = await model.offload.run(sum(map(len, texts)), pieces, inline_below=INLINE_CUT)
        prompts = list(zip(before, heads, strict=True))
        if len(tail) == 1 and all(len(head) == 1 for head in heads):
            return (replace(prompt, text=head[0] + tail[0]) for prompt, head in prompts)
        encode, last = model.encode, await tokens_of([*tail], False, model.encode)
        first = [await tokens_of([*head], prompt.add_special_tokens, encode) for prompt, head in prompts]
        return (TokenPrompt([*tokens, *last]) for tokens in first)

    def _pieces(self, parts: list[tuple[str, str]]) -> list[str]:
        """Joins the texts of `Notation.head` or `tail`, cut where a client's text has that of a special token."""
        pieces = [""]
        for own, given in parts:
            first, *more = self.cutter.cut(given, MAX_TEXTS - len(pieces))
            pieces[-1] += own + first
            pieces += more
        return pieces


_known: WeakKeyDictionary[TextModel, tuple[Vocabulary, Filling | None]] = WeakKeyDictionary()
"""The notation of each model, with the vocabulary in which it was looked for."""


async def filling_of(model: TextModel) -> Filling:
    """Returns the notation whose tokens the model's tokenizer has. Raises RequestError."""
    vocabulary, found = _known.get(model, (None, None))
    if vocabulary is not model.vocabulary:
        found = await _look(model)
        _known[model] = model.vocabulary, found
    if found is None:
        raise NotFound(NO_TOKENS, param="model", code="not_supported")
    return found


async def _look(model: TextModel) -> Filling | None:
    words = sorted({word for notation in NOTATIONS for word in notation if word} | set(ENDS))
    ids = await model.encode(words, False)
    known = {word: tokens[0] for word, tokens in zip(words, ids, strict=True) if len(tokens) == 1}
    named = list(known.values())
    # Words with the same token are unknown to the vocabulary.
    known = {word: token for word, token in known.items() if named.count(token) == 1}
    notation = next((n for n in NOTATIONS if known.keys() >= set(filter(None, n))), None)
    if notation is None:
        return None
    cutter = TextCutter({*known, *special_texts(model.vocabulary)})
    return Filling(notation, tuple(known[word] for word in ENDS if word in known), cutter)


async def filled_in(
    generation: GenerationBody, prompts: Sequence[TextPrompt | TokenPrompt], suffix: str
) -> tuple[GenerationBody, Iterator[TextPrompt | TokenPrompt]]:
    """Returns a request that fills in the text between each prompt and the suffix, and its prompts in the model's own
    notation. Raises RequestError."""
    texts = [prompt for prompt in prompts if isinstance(prompt, TextPrompt)]
    if len(texts) != len(prompts):
        raise BadRequest("suffix needs prompts that are strings", param="suffix")
    try:
        filling = await filling_of(generation.model)
    except NotFound:
        raise BadRequest(f"suffix is not supported: {NO_TOKENS}", param="suffix") from None
    return generation.ending_at(filling.ends), await filling.prompts(generation.model, texts, suffix)

"""How one model is spoken to and how its answers are read: its chat template, its parsers, its tokens' text.

Made once a model is loaded, from its directory and what its engine knows. Knows no engine processes and no requests
in flight. Only load imports this module: what it needs is a third of all imports, and nobody has to wait for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ..config import Config
from ..errors import RequestError, StartError
from ..repository.model_dir import ModelDir
from ..text import parsers
from ..text.decode.detokenizer import Detokenizer, WindowDetokenizer
from ..text.decode.stop_strings import StopMatcher
from ..text.grammar.build import GrammarContext
from ..text.template.chat_template import ChatTemplate
from ..text.template.escape import SpecialTokenEscaper
from ..text.template.limits import TooSlowInline
from ..types import ChatPrompt, ModelInfo, Output, SamplingParams, Vocabulary
from ..util.concurrency import BRIEF_CHARACTERS, Offload
from .output_decoder import OutputDecoder
from .structured_output import apply_constraint

T = TypeVar("T")

PROBE = [{"role": "user", "content": "Hey"}]


class ChatFormat:
    """tool_parser, reasoning_parser: names, or None for none. template: renders chats."""

    def __init__(self, config: Config, directory: ModelDir, info: ModelInfo, vocabulary: Vocabulary) -> None:
        """Raises StartError for a parser that does not exist."""
        self.template = ChatTemplate.load(
            directory,
            override=config.chat_template,
            from_tokenizer=info.chat_template,
            bos_token=info.bos_token,
            eos_token=info.eos_token,
            content_format=config.chat_template_content_format,
            escaper=_escaper(vocabulary) if config.neutralize_special_tokens else None,
        )
        known, (tool, reasoning) = parsers.names(), parsers.detect(self.template.source)
        self.tool_parser = _chosen("tool_parser", config.tool_parser, tool, known.tool)
        self.reasoning_parser = _chosen("reasoning_parser", config.reasoning_parser, reasoning, known.reasoning)
        self._config = config
        self._sentencepiece = info.sentencepiece
        self._opens_thoughts = self._begins_thoughts_itself()
        self._shown: tuple[Vocabulary, tuple[str, ...], Vocabulary] | None = None

    async def render(self, prompt: ChatPrompt, aside: Offload) -> str:
        """The text the model would see; what takes long is done beside the loop. Raises RequestError."""
        if prompt.work < BRIEF_CHARACTERS:
            try:
                return self.template.render(prompt, None)
            except TooSlowInline:
                pass
        slowly = partial(self.template.render, prompt, self._config.template_timeout_s)
        return await aside.run(prompt.work, slowly)

    async def imposed(
        self, output: Output, tail: str, submit: Callable[[str], Awaitable[T]], aside: Offload
    ) -> tuple[T, list[str]]:
        """What submit makes of the structural tag of the form asked for, and what of it is not imposed.

        tail: the prompt's end. Raises RequestError.
        """
        if output.guide is None:
            return await submit(""), []
        return await apply_constraint(output.guide, self.setting(output, tail), submit, self._config, aside)

    def setting(self, output: Output, tail: str) -> GrammarContext:
        """What a grammar for an answer needs to know. tail: the prompt's end."""
        parsed = (self.tool_parser, self.reasoning_parser) if output.parse else (None, None)
        return GrammarContext(
            form=parsers.output_form(*parsed),
            prompt_tail=tail,
            tools=output.tools,
            sentencepiece=self._sentencepiece,
            template_opens_reasoning=self._opens_thoughts,
        )

    def choice(
        self, index: int, output: Output, sampling: SamplingParams, tail: str, vocabulary: Vocabulary
    ) -> OutputDecoder:
        """The reader of one answer. vocabulary: the engine's, which may be another one after a restart."""
        parser = None
        if output.parse:
            tool = self.tool_parser if output.tools else None
            if tool or self.reasoning_parser:
                parser = parsers.make(tool, self.reasoning_parser, tools=list(output.tools), prompt_tail=tail)
        skip, window = output.skip_special_tokens, None if vocabulary.exact else WindowDetokenizer()
        special = vocabulary.special
        if parser is not None and parser.keep_special_tokens:
            vocabulary, skip = self._showing(parser.tags, vocabulary), False
        return OutputDecoder(
            index=index,
            detokenizer=Detokenizer(vocabulary, output.skip_special_tokens),
            window=window,
            skip_special=skip,
            stops=StopMatcher(output.stop, output.include_stop) if output.stop else None,
            parser=parser,
            min_tokens=output.min_tokens,
            stop_ids=frozenset(sampling.stop_token_ids),
            special=special,
        )

    def _showing(self, tags: tuple[str, ...], whole: Vocabulary) -> Vocabulary:
        """The vocabulary with those special tokens visible that a parser reads; the others stay hidden."""
        if self._shown is None or self._shown[0] is not whole or self._shown[1] != tags:
            shown = [tag.encode() for tag in tags]
            hidden = frozenset(t for t in whole.special if not any(whole.pieces[t] in tag for tag in shown))
            self._shown = whole, tags, replace(whole, special=hidden)
        return self._shown[2]

    def _begins_thoughts_itself(self) -> bool:
        """Whether a prompt that asks for thinking ends inside of a thought: then one that does not asks for none."""
        try:
            text = self.template.render(ChatPrompt(messages=PROBE, template_kwargs={"enable_thinking": True}))
        except RequestError:
            return False
        return parsers.opens_reasoning(self.reasoning_parser, text)


def _escaper(words: Vocabulary) -> SpecialTokenEscaper:
    return SpecialTokenEscaper(words.pieces[token].decode("utf-8", "replace") for token in words.special)


def _chosen(option: str, asked: str, detected: str | None, known: tuple[str, ...]) -> str | None:
    if not asked:
        return detected
    if asked == "none":
        return None
    if asked not in known:
        raise StartError(f"--{option} must be none or one of {', '.join(known)}, not {asked!r}")
    return asked

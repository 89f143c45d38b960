"""Holds the formats of one model: its chat template for prompts, and the form to which its answers are parsed and held.

They are built when the model is loaded, from its directory and its engine's report. Only TextModel.load imports this
module, since it needs a third of all imports, and the server listens before these are done.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..config import Config
from ..config.options import read_object
from ..errors import BadRequest, RequestError
from ..manifest import ANSWER_FORMATS, REQUEST_CONSTRAINTS, TEMPLATE_READERS
from ..repository.model_dir import ModelDir
from ..text.decode.detokenizer import Detokenizer, WindowDetokenizer
from ..text.template.chat_template import (
    ChatTemplate,
    SpecialTokenEscaper,
    TemplateReader,
    TemplateSettings,
    plain_calls,
)
from ..types import ChatPrompt, OutputConstraint, OutputParams, SamplingParams
from ..types.engine import EngineRequest, ModelInfo, Vocabulary
from ..util.concurrency import INLINE_CHARACTERS, Offload
from .generation import OutputDecoder

if TYPE_CHECKING:
    from ..engine.client.interface import ModelEngine
    from ..engine.client.replies import ReplyStream
    from ..grammar.call_syntax import GrammarContext, OutputForm
    from ..observability.records import Metrics
    from ..text.decode.stop_strings import StopMatcher
    from .generation import AnswerParser

log = logging.getLogger("lean_ovms.models")

UNPARSED = "skip_special_tokens is false, so reasoning and tool calls are not parsed"
NO_TOOL_PARSER = "tool_choice requires a call, but no tool parser is set for this model"
NO_REASONING = "the limit of reasoning has no effect: the model has no reasoning parser"
TEMPLATE_NOT_TRUSTED = (
    "chat_template is not accepted in requests; start the server with --trust_request_chat_template to allow it, "
    "or with --chat_template to set it for all requests"
)
PROBE = [{"role": "user", "content": "Hey"}]


class RequestConstraint(Protocol):
    """The constraint on the answer to one request, enforced by a grammar as far as possible."""

    @property
    def warnings(self) -> list[str]:
        """Warnings about the parts of the constraint that are not enforced, one sentence each."""

    async def submit(self, engine: ModelEngine, request: EngineRequest) -> ReplyStream:
        """Submits a request with the grammar as its `constraint`. Raises RequestError."""

    def accepted(self, metrics: Metrics, model: str) -> None:
        """Logs and counts what is not enforced for a model, once the engine has accepted the request."""


class AnswerFormat:
    """The form of a model's answers: all of them text, unless a feature reads tool calls and reasoning."""

    tool_parser: str | None = None
    """The name of the tool parser; None if tool calls are returned as text."""
    reasoning_parser: str | None = None
    """The name of the reasoning parser; None if reasoning is returned as text."""
    unread = ""
    """The addition to error messages if an option switches tool calls off: a blank and a reason in parentheses."""
    holds_calls = False
    """Whether a grammar enforces the schemas of all tool calls, since no model is trained for their notation."""

    def form(self, prompt_tail: str = "") -> OutputForm:
        """Returns the form of the model's answer to a prompt with this end."""
        from ..grammar.call_syntax import OutputForm  # late: for requests with tools or a grammar

        return OutputForm()

    def write_calls(self, calls: list[tuple[str, Any]]) -> str:
        """Returns the text of calls, given as names and arguments, in the model's notation."""
        return plain_calls(calls)

    def opens_reasoning(self, prompt_tail: str) -> bool:
        """Returns whether a prompt with this end leaves a block of reasoning open."""
        return False

    def parser(self, output: OutputParams, prompt_tail: str) -> tuple[AnswerParser | None, tuple[str, ...]]:
        """Returns the parser of a choice, None if all of it is text, and the special tokens that the text must keep.

        The end of the prompt, of which a few hundred characters are enough, shows whether reasoning is open already.
        """
        return None, ()


def answer_format(config: Config, template: str, tool_template: str = "") -> AnswerFormat:
    """Returns the answer format of a model, which its options or its chat templates determine.

    Args:
        config: The options.
        template: The source of the chat template; "" if there is none.
        tool_template: The source of the template for requests with tools; "" if it is the same.
    """
    new = config.part(ANSWER_FORMATS)
    made: AnswerFormat = AnswerFormat() if new is None else new(config, template, tool_template)
    return made


class ChatFormat:
    """Renders the chats of a model, and parses its answers."""

    def __init__(self, config: Config, directory: ModelDir, info: ModelInfo, vocabulary: Vocabulary) -> None:
        """Creates the template and the form of answers. Raises WrongOptions for an invalid template."""
        special = (vocabulary.pieces[token].decode("utf-8", "replace") for token in vocabulary.special)
        settings = TemplateSettings(
            content_format=config.chat_template_content_format,
            escaper=SpecialTokenEscaper(special) if config.neutralize_special_tokens else None,
            variables=read_object("default_chat_template_kwargs", config.default_chat_template_kwargs),
            reader=config.part(TEMPLATE_READERS) or TemplateReader,
        )
        self.template = ChatTemplate.load(
            directory,
            override=config.chat_template,
            from_tokenizer=info.chat_template,
            bos_token=info.bos_token,
            eos_token=info.eos_token,
            settings=settings,
        )
        self.answers = answer_format(config, self.template.source, self.template.tool_source)
        self.template.write_calls = self.answers.write_calls
        read = self.template.capabilities
        kind = "openai" if "user" in read.parts or not read.strings else "string"
        found = "set" if config.chat_template_content_format != "auto" else "detected"
        log.info("the content format of the chat template is %s (%s; --chat_template_content_format)", kind, found)
        self._default_budget = directory.generation_config.get("thinking_token_budget")
        if self._default_budget is not None and self.answers.reasoning_parser is None:
            log.warning("thinking_token_budget of generation_config: %s", NO_REASONING)
        self._config = config
        self._template_opens_reasoning = self._opens_reasoning()
        self._shown: tuple[Vocabulary, tuple[str, ...], Vocabulary] | None = None

    async def render(self, prompt: ChatPrompt, offload: Offload) -> str:
        """Returns the text of a prompt. Long work runs in the offload thread. Raises RequestError."""
        if prompt.template:
            return await self._render_by_request(prompt, offload)
        work = partial(self.template.render, prompt, self._config.template_timeout_s)
        return await offload.run(prompt.render_cost, work, inline_below=INLINE_CHARACTERS)

    async def _render_by_request(self, prompt: ChatPrompt, offload: Offload) -> str:
        if not self._config.trust_request_chat_template:
            raise BadRequest(TEMPLATE_NOT_TRUSTED, param="chat_template")

        def work() -> str:
            return self.template.of_request(prompt.template).render(prompt, self._config.template_timeout_s)

        return await offload.run(prompt.render_cost + len(prompt.template), work)

    def structured_output(
        self, output: OutputParams, sampling: SamplingParams, tail: str, offload: Offload, *, combines: bool
    ) -> RequestConstraint | None:
        """Returns the constraint on the answer of a request; None if there is none.

        Args:
            output: The output parameters of the request.
            sampling: The sampling parameters of the request.
            tail: The end of the prompt.
            offload: Runs the compilation of large schemas outside the event loop.
            combines: Whether the engine can combine grammars with beam search and min_tokens.

        Raises:
            BadRequest: A tool call is required, but the model has no tool parser.
        """
        constraint = output.constraint
        reads_calls = self.answers.tool_parser is not None
        if constraint is not None and constraint.tool_calls == "required" and output.parse and not reads_calls:
            raise BadRequest(NO_TOOL_PARSER + self.answers.unread, param="tool_choice")
        asked = constraint is not None
        if constraint is None:
            parsed = output.parse and output.parse_calls and output.tools and self.answers.holds_calls
            if not parsed or not (combines or (sampling.beams == 1 and not sampling.min_tokens)):
                return None
            constraint = OutputConstraint(param="tools", tool_calls="schema")
        new = self._config.part(REQUEST_CONSTRAINTS)
        if new is None:
            return None
        made: RequestConstraint = new(constraint, self.setting(output, tail), self._config, offload, asked=asked)
        return made

    def setting(self, output: OutputParams, tail: str) -> GrammarContext:
        """Returns what a grammar depends on: the model's form of answers, the end of the prompt, and the tools."""
        from ..grammar.call_syntax import GrammarContext, OutputForm

        unparsed = UNPARSED if self.answers.tool_parser else ""
        return GrammarContext(
            form=self.answers.form(tail) if output.parse else OutputForm(unparsed=unparsed),
            prompt_tail=tail,
            tools=output.tools,
            parallel=output.parallel,
            template_opens_reasoning=self._template_opens_reasoning,
        )

    def with_thinking(self, sampling: SamplingParams, tail: str) -> tuple[SamplingParams, list[str]]:
        """Returns parameters with the reasoning tags if they limit reasoning; a warning if a client does so in vain."""
        if sampling.thinking_token_budget is None:
            return sampling, []
        form = self.answers.form(tail).reasoning
        if form is None:
            warnings = [] if sampling.thinking_token_budget == self._default_budget else [NO_REASONING]
            return replace(sampling, thinking_token_budget=None), warnings
        return replace(sampling, thinking_tags=(form.start, form.end), thinking_open=form.opened(tail)), []

    def decoders(
        self, output: OutputParams, sampling: SamplingParams, tail: str, vocabulary: Vocabulary
    ) -> list[OutputDecoder]:
        """Returns a decoder for each choice.

        Args:
            output: The output parameters of the request.
            sampling: The sampling parameters of the request.
            tail: The end of the prompt.
            vocabulary: The engine's vocabulary, which may change with a restart.
        """
        return [self._decoder(index, output, sampling, tail, vocabulary) for index in range(sampling.n)]

    def _decoder(
        self, index: int, output: OutputParams, sampling: SamplingParams, tail: str, vocabulary: Vocabulary
    ) -> OutputDecoder:
        parser, tags = self.answers.parser(output, tail) if output.parse else (None, ())
        skip, window = output.skip_special_tokens, None if vocabulary.exact else WindowDetokenizer()
        special = vocabulary.special
        if tags:
            vocabulary, skip = self._vocabulary_showing(tags, vocabulary), False
        return OutputDecoder(
            index=index,
            detokenizer=Detokenizer(vocabulary, output.skip_special_tokens),
            window=window,
            skip_special=skip,
            stops=_stops(output) if output.stop else None,
            parser=parser,
            min_tokens=output.min_tokens,
            stop_ids=frozenset(sampling.stop_token_ids),
            special=special,
        )

    def _vocabulary_showing(self, tags: tuple[str, ...], vocabulary: Vocabulary) -> Vocabulary:
        """Returns the vocabulary with those special tokens visible that a parser reads."""
        if self._shown is None or self._shown[0] is not vocabulary or self._shown[1] != tags:
            shown = [tag.encode() for tag in tags]
            hidden = frozenset(t for t in vocabulary.special if not any(vocabulary.pieces[t] in tag for tag in shown))
            self._shown = vocabulary, tags, replace(vocabulary, special=hidden)
        return self._shown[2]

    def _opens_reasoning(self) -> bool:
        """Returns whether prompts with thinking end inside the reasoning, so that all other prompts disable it."""
        try:
            text = self.template.render(ChatPrompt(messages=PROBE, template_kwargs={"enable_thinking": True}))
        except RequestError:
            return False
        return self.answers.opens_reasoning(text)


def _stops(output: OutputParams) -> StopMatcher:
    from ..text.decode.stop_strings import StopMatcher  # most requests have no stop strings

    return StopMatcher(output.stop, output.include_stop)

"""The formats of one model: its chat template for prompts, and its parsers and grammars for answers.

It is built when the model is loaded, from its directory and what its engine reports. Only TextModel.load imports it,
since it needs a third of all imports, for which listening does not wait.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..config import Config
from ..config.options import read_object
from ..errors import BadRequest, RequestError, WrongOptions
from ..manifest import REQUEST_CONSTRAINTS
from ..repository.model_dir import ModelDir
from ..text.decode.detokenizer import Detokenizer, WindowDetokenizer
from ..text.parsers import GENERIC, ParserRegistry, registry
from ..text.template.chat_template import ChatTemplate, SpecialTokenEscaper
from ..types import ChatPrompt, OutputConstraint, OutputParams, SamplingParams
from ..types.engine import ModelInfo, Vocabulary
from ..util.concurrency import INLINE_CHARACTERS, Offload
from .generation import OutputDecoder

if TYPE_CHECKING:
    from ..engine.client.replies import ReplyStream
    from ..grammar.call_syntax import GrammarContext
    from ..observability.records import Metrics
    from ..text.decode.stop_strings import StopMatcher

log = logging.getLogger("lean_ovms.models")

UNPARSED = "skip_special_tokens is false, and so the answer is not parsed"
NO_TOOL_PARSER = "tool_choice requires a call, but this server reads none of this model"
NO_REASONING = "thinking_token_budget has no effect: the model has no reasoning parser"
TEMPLATE_NOT_TRUSTED = (
    "chat_template is not accepted in requests: the server has to be started with --trust_request_chat_template, "
    "or with --chat_template for all requests"
)
PROBE = [{"role": "user", "content": "Hey"}]


class RequestConstraint(Protocol):
    """The constraint on the answer to one request, enforced by a grammar as far as possible."""

    @property
    def warnings(self) -> list[str]:
        """Warnings about the parts of the constraint that are not enforced, one sentence each."""

    async def submit(self, submit: Callable[..., Awaitable[ReplyStream]]) -> ReplyStream:
        """Submits the request to the engine with the grammar. Raises RequestError.

        Args:
            submit: Submits the request; the grammar is passed as the keyword `constraint`.
        """

    def accepted(self, metrics: Metrics, model: str) -> None:
        """Logs and counts the parts of the constraint that are not enforced; called once the engine has accepted the
        request.

        Args:
            metrics: The metrics of the server.
            model: The name of the model.
        """


class ChatFormat:
    """Renders the chats of a model, and parses its answers."""

    def __init__(self, config: Config, directory: ModelDir, info: ModelInfo, vocabulary: Vocabulary) -> None:
        """Creates the template, the parsers and the grammars.

        Raises WrongOptions for an unknown parser or an invalid template.
        """
        special = (vocabulary.pieces[token].decode("utf-8", "replace") for token in vocabulary.special)
        self.template = ChatTemplate.load(
            directory,
            override=config.chat_template,
            from_tokenizer=info.chat_template,
            bos_token=info.bos_token,
            eos_token=info.eos_token,
            content_format=config.chat_template_content_format,
            escaper=SpecialTokenEscaper(special) if config.neutralize_special_tokens else None,
            variables=read_object("default_chat_template_kwargs", config.default_chat_template_kwargs),
        )
        self._parsers = registry(config.composition)
        self.tool_parser, self.reasoning_parser = parser_names(config, self.template.source, self.template.tool_source)
        self.template.write_calls = partial(_write_calls, self._parsers, self.tool_parser or self._parsers.usual)
        kind = "openai" if "user" in self.template.capabilities.parts else "string"
        found = "set" if config.chat_template_content_format != "auto" else "detected"
        log.info("the content format of the chat template is %s (%s; --chat_template_content_format)", kind, found)
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

        Calls for the generic parser are constrained by their schemas even if the client does not ask for it, since no
        model is trained for its notation.

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
        if constraint is not None and constraint.tool_calls == "required" and output.parse and not self.tool_parser:
            why = " (--tool_parser none)" if self._config.tool_parser else ""
            raise BadRequest(NO_TOOL_PARSER + why, param="tool_choice")
        asked = constraint is not None
        if constraint is None:
            parsed = output.parse and output.parse_calls and output.tools and self.tool_parser == GENERIC
            if not parsed or not (combines or (sampling.beams == 1 and not sampling.min_tokens)):
                return None
            constraint = OutputConstraint(param="tools", tool_calls="schema")
        new = self._config.part(REQUEST_CONSTRAINTS)
        if new is None:
            return None
        made: RequestConstraint = new(constraint, self.setting(output, tail), self._config, offload, asked=asked)
        return made

    def setting(self, output: OutputParams, tail: str) -> GrammarContext:
        """Returns what a grammar depends on: the model's form of answers, the prompt and the tools.

        Args:
            output: The parameters of the answer.
            tail: The end of the prompt.
        """
        from ..grammar.call_syntax import GrammarContext, OutputForm

        form = OutputForm(unparsed=UNPARSED if self.tool_parser else "")
        if output.parse:
            form = self._parsers.output_form(self.tool_parser, self.reasoning_parser, tail)
        return GrammarContext(
            form=form,
            prompt_tail=tail,
            tools=output.tools,
            parallel=output.parallel,
            template_opens_reasoning=self._template_opens_reasoning,
        )

    def with_thinking(self, sampling: SamplingParams, tail: str) -> tuple[SamplingParams, list[str]]:
        """Returns the sampling parameters with the model's reasoning tags added, if the request limits its reasoning,
        and warnings.

        There is a warning if the model has no such tags.

        Args:
            sampling: The parameters.
            tail: The end of the prompt.
        """
        if sampling.thinking_token_budget is None:
            return sampling, []
        form = self._parsers.output_form(None, self.reasoning_parser, tail).reasoning
        if form is None:
            return replace(sampling, thinking_token_budget=None), [NO_REASONING]
        tags, opened = (form.start, form.end), form.opened(tail)
        return replace(sampling, thinking_tags=tags, thinking_open=opened), []

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
        parser = raw = None
        if output.parse:
            tool = self.tool_parser if output.tools and output.parse_calls else None
            reasoning = self.reasoning_parser if output.parse_reasoning or tool == self.reasoning_parser else None
            if tool or reasoning:
                parser = self._parsers.make(tool, reasoning, tools=list(output.tools), prompt_tail=tail)
            if self.reasoning_parser and not reasoning:  # its tags are text
                raw = self._parsers.make(None, self.reasoning_parser, tools=[], prompt_tail=tail)
        skip, window = output.skip_special_tokens, None if vocabulary.exact else WindowDetokenizer()
        special = vocabulary.special
        shown = [one for one in (parser, raw) if one is not None and one.keep_special_tokens]
        if shown:
            tags = tuple(tag for one in shown for tag in one.tags)
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
        """Returns whether prompts that enable thinking end inside the reasoning, so that all other prompts disable
        it.
        """
        try:
            text = self.template.render(ChatPrompt(messages=PROBE, template_kwargs={"enable_thinking": True}))
        except RequestError:
            return False
        return self._parsers.opens_reasoning(self.reasoning_parser, text)


def check_options(config: Config) -> None:
    """Raises WrongOptions for the name of an unknown parser, or a chat template that cannot be read."""
    parser_names(config, "")
    ChatTemplate.load(ModelDir(), override=config.chat_template)


def _write_calls(parsers: ParserRegistry, tool_parser: str | None, calls: Sequence[tuple[str, Any]]) -> str:
    """Returns the text of tool calls in the notation of a tool parser's model family.

    Args:
        parsers: The registry of parsers.
        tool_parser: The name of the tool parser; None for none.
        calls: The name and the arguments of each call.
    """
    from ..grammar.call_text import WrittenCall, calls_text  # late: most chats have no calls

    return calls_text(parsers.output_form(tool_parser, None).calls, [WrittenCall(*call) for call in calls])


def parser_names(config: Config, template: str, tool_template: str = "") -> tuple[str | None, str | None]:
    """Returns the names of the tool parser and the reasoning parser, set by options or detected from the templates.

    If a chat template reveals no tool parser, the generic one is used, with which any chat model can make calls.

    Args:
        config: The options.
        template: The source of the chat template; "" if the model cannot chat.
        tool_template: The source of the template for requests with tools, if it is a different one.

    Raises:
        WrongOptions: An option names a parser that does not exist.
    """
    parsers = registry(config.composition)
    tool, reasoning = parsers.detect(template)
    if tool_template:
        of_tools = parsers.detect(tool_template)
        tool, reasoning = of_tools[0] or tool, reasoning or of_tools[1]
    if template:
        tool = tool or parsers.usual
    return (
        _parser_name("tool_parser", config.tool_parser, tool, parsers.tool_names),
        _parser_name("reasoning_parser", config.reasoning_parser, reasoning, parsers.reasoning_names),
    )


def _parser_name(option: str, configured: str, detected: str | None, known: tuple[str, ...]) -> str | None:
    if not configured:
        return detected
    if configured == "none":
        return None
    if configured not in known:
        names = f"none or one of {', '.join(known)}" if known else "none"
        raise WrongOptions(f"--{option} must be {names}, not {configured!r}")
    return configured


def _stops(output: OutputParams) -> StopMatcher:
    from ..text.decode.stop_strings import StopMatcher  # most requests have no stop strings

    return StopMatcher(output.stop, output.include_stop)

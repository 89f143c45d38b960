"""Renders messages and tools with a model's chat template, with the same result as Hugging Face transformers.

A template is compiled and probed once; rendering a short conversation takes 0.1 ms. Every error of a template becomes a
BadRequest of one line, without paths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jinja2

from ...errors import BadRequest, WrongOptions
from ...repository.model_dir import ModelDir
from ...types import ChatPrompt, Json
from ...util.concurrency import TooSlowInline
from ...util.files import read_text
from . import sandbox
from .messages import Capabilities, ToolNeeds, prepare, prepare_tools

DEFAULT_RENDER_S = 10.0
"""The CPU seconds for rendering if no limit is given."""
DEFAULT_PROBE_S, REQUEST_PROBE_S = 60.0, 1.0
"""The CPU seconds for all probes of a model's template, which no request waits for, and of a template in a request."""
MAX_REQUEST_TEMPLATE = 1 << 17
"""The most characters of a template in a request, several times those of the longest models' templates."""
REQUEST_TEMPLATES = 8
"""The number of templates of requests that stay compiled; a client that has one sends it with every request."""
NO_TEMPLATE = "Error: Chat template not loaded correctly, so it cannot be applied"

_OWN = ("messages", "tools", "bos_token", "eos_token", "continue_final_message")
_TRANSFORMERS = ("chat_template", "tokenize", "conversation", "conversations", "tokenizer_kwargs", "padding")
_TRANSFORMERS_MORE = ("truncation", "max_length", "return_dict", "return_tensors", "return_assistant_tokens_mask")
RESERVED = frozenset((*_OWN, *_TRANSFORMERS, *_TRANSFORMERS_MORE))
"""Names that chat_template_kwargs must not set: the server's own arguments and those of transformers'
apply_chat_template. Setting them would let a client change how a template is run (CVE-2025-61620, CVE-2025-62426)."""


CallsWriter = Callable[[list[tuple[str, Any]]], str]
"""A function that returns the text of calls, given as names and arguments, in the notation of the model's parser."""
RenderTemplate = Callable[[list[Json], "list[Json] | None", bool, Json, float], str]
"""Renders messages and tools, given add_generation_prompt, arguments and the most CPU seconds; raises anything."""


def plain_calls(calls: list[tuple[str, Any]]) -> str:
    """Returns calls as JSON objects. This is the CallsWriter for a model without a known parser."""
    return "\n".join(json.dumps({"name": name, "arguments": value}, ensure_ascii=False) for name, value in calls)


class TemplateReader:
    """The forms of conversations and tools that a template reads: those of clients, unless a feature knows more."""

    capabilities: Capabilities
    """The capabilities of the template: which parts of conversations it reads, and in which form."""
    tool_needs = ToolNeeds()
    """The members of tools that it needs."""
    no_tools: list[Json] | None = None
    """The value of the template's variable `tools` if a request has no tools."""

    def __init__(self, source: str, render: RenderTemplate, content_format: str, probe_s: float) -> None:
        """Finds out what a template reads.

        Args:
            source: The template.
            render: Renders a conversation.
            content_format: The form of content that the template reads: "string", "openai" (a list of parts), or "auto"
                to find it out.
            probe_s: The most CPU seconds for probing.
        """
        self.capabilities = Capabilities(strings=content_format != "openai", arguments="object")

    def example(self, messages: list[Json]) -> str:
        """Renders a short conversation unchanged; returns "" if that fails. Raises TooSlowInline."""
        return ""

    def arrange(
        self, messages: list[Json], tools: list[Json], *, add: bool, write_calls: CallsWriter
    ) -> tuple[list[Json], list[Json]]:
        """Arranges messages and tools so that the template shows all of them, and returns both. Raises TooSlowInline.

        Args:
            messages: The conversation as `prepare` returns it.
            tools: The tools as `prepare_tools` returns them.
            add: Whether the prompt ends with the beginning of an answer.
            write_calls: Writes calls in the model's notation.
        """
        return messages, tools

    def arrange_exactly(
        self, messages: list[Json], tools: list[Json], *, add: bool, write_calls: CallsWriter
    ) -> list[Json] | None:
        """Arranges, with more effort, a conversation that the template refuses after `arrange`.

        Returns the messages, or None if there is nothing more to try. Raises TooSlowInline.

        Args:
            messages: The conversation as `prepare` returns it.
            tools: The tools as `prepare_tools` returns them.
            add: Whether the prompt ends with the beginning of an answer.
            write_calls: Writes calls in the model's notation.
        """
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSettings:
    """The settings with which a template is read and rendered."""

    content_format: str = "auto"
    """The form of content that the template reads: "string", "openai" (a list of parts), or "auto" to find it out."""
    escaper: SpecialTokenEscaper | None = None
    """Escapes special tokens in the texts of users and tools."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """The chat_template_kwargs of every prompt; a prompt's own take precedence."""
    probe_s: float = DEFAULT_PROBE_S
    """The CPU seconds for probing."""
    reader: type[TemplateReader] = TemplateReader
    """Finds out what the template reads, and arranges conversations."""


DEFAULTS = TemplateSettings()


class ChatTemplate:
    """A model's chat template, with the separate one for tools if there is one.

    `write_calls` writes calls in the model's notation, for templates that do not render calls. It must be set by the
    code that knows the model's parser.
    """

    def __init__(
        self,
        source: str,
        tool_source: str = "",
        *,
        special_tokens: Mapping[str, str] | None = None,
        directory: Path | None = None,
        settings: TemplateSettings = DEFAULTS,
    ) -> None:
        """Compiles the templates, and probes what they can read. If one is invalid, prompts that need it fail.

        Args:
            source: The template.
            tool_source: The template for prompts with tools; "" if it is the same.
            special_tokens: The texts of special tokens by name, as variables for the template.
            directory: The directory of templates that can be included.
            settings: How the templates are read and rendered.

        Raises:
            WrongOptions: There are variables that chat_template_kwargs must not set.
        """
        self._variables, self._escaper = dict(settings.variables), settings.escaper
        if refused := sorted(RESERVED & self._variables.keys()):
            raise WrongOptions(f"--default_chat_template_kwargs must not set {', '.join(refused)}")
        self.source = source
        self.tool_source = tool_source
        self.write_calls: CallsWriter = plain_calls
        self.special_tokens = tokens = {"bos_token": "", "eos_token": "", **(special_tokens or {})}
        env = sandbox.ChatEnvironment(directory)
        of_request = replace(settings, probe_s=REQUEST_PROBE_S)
        make = partial(ChatTemplate, special_tokens=tokens, settings=of_request)
        self._of_request = lru_cache(REQUEST_TEMPLATES)(make)
        read = partial(settings.reader, content_format=settings.content_format, probe_s=settings.probe_s)
        self._main = _CompiledTemplate(env, source, tokens, read)
        self._tool = _CompiledTemplate(env, tool_source, tokens, read) if tool_source else self._main

    @classmethod
    def load(
        cls,
        directory: ModelDir,
        *,
        override: str = "",
        from_tokenizer: str = "",
        bos_token: str = "",
        eos_token: str = "",
        settings: TemplateSettings = DEFAULTS,
    ) -> ChatTemplate:
        """Returns the template of a model.

        The first that exists is used: override, chat_template.jinja, the tokenizer's, the JSON files', the one for
        tools.

        Args:
            directory: The files of the model.
            override: A template, or the path of its file; "" for none.
            from_tokenizer: The template of the engine's tokenizer; "" for none.
            bos_token: The engine's BOS token; "" to use the one in the model's files.
            eos_token: The engine's EOS token; "" to use the one in the model's files.
            settings: How the template is read and rendered.

        Raises:
            WrongOptions: The override is not a template, or there are variables that chat_template_kwargs must not set.
                A broken template of the model only makes chats impossible.
        """
        override = _override(override)
        found = override or directory.chat_template or from_tokenizer or directory.fallback_template
        source = found or directory.tool_template
        known = {"bos_token": bos_token, "eos_token": eos_token}
        template = cls(
            source,
            "" if override else directory.tool_template,
            special_tokens={**directory.special_tokens, **{name: text for name, text in known.items() if text}},
            directory=directory.path,
            settings=settings,
        )
        if override and template.problem:
            raise WrongOptions(f"--chat_template: {template.problem}")
        return template

    def of_request(self, source: str) -> ChatTemplate:
        """Returns a request's own template, with the settings of this one but without its files. Raises BadRequest.

        Compiling and probing take a few milliseconds, so it should be called in a thread.
        """
        if len(source) > MAX_REQUEST_TEMPLATE:
            raise BadRequest(f"chat_template is longer than {MAX_REQUEST_TEMPLATE} characters", param="chat_template")
        template = self._of_request(source)
        template.write_calls = self.write_calls
        if template.problem:
            raise BadRequest(template.problem, param="chat_template")
        return template

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the template, found by probing."""
        return self._main.reader.capabilities

    @property
    def problem(self) -> str:
        """The reason why the model cannot chat, which is the error of every chat request; "" if it can."""
        return self._main.error or self._tool.error if self.source else NO_TEMPLATE

    def render(self, prompt: ChatPrompt, seconds: float = DEFAULT_RENDER_S) -> str:
        """Returns the rendered text of a prompt.

        Args:
            prompt: The conversation.
            seconds: The most CPU seconds that the template may take.

        Raises:
            BadRequest: The template refuses the conversation, or takes too long.
            TooSlowInline: The request has used up its time on the event loop.
        """
        if not self.source:
            raise BadRequest(NO_TEMPLATE)
        if self._variables:
            prompt = replace(prompt, template_kwargs=self._variables | prompt.template_kwargs)
        template = self._tool if prompt.tools else self._main
        return template.render(prompt, seconds, self._escaper, self.write_calls)


def _override(option: str) -> str:
    """Returns the template that --chat_template names or contains."""
    if not option or "{" in option or "\n" in option:
        return option
    try:
        return read_text(option, "utf-8-sig")
    except (OSError, ValueError) as error:
        raise WrongOptions(f"--chat_template is neither a readable file nor a template: {option}") from error


class _CompiledTemplate:
    """A compiled template and its capabilities."""

    def __init__(
        self,
        env: jinja2.Environment,
        source: str,
        tokens: Mapping[str, str],
        read: Callable[[str, RenderTemplate], TemplateReader],
    ) -> None:
        """Compiles a template.

        Args:
            env: The environment of templates.
            source: The template.
            tokens: The texts of special tokens by name, as variables for the template.
            read: Finds out what the template reads.
        """
        self.error = ""
        """The reason why the template cannot be used; "" if it can."""
        self.reader = TemplateReader("", self._call, "auto", 0.0)
        self._tokens = tokens
        self._template = env.from_string("")
        self._roles = Roles(source)
        try:
            self._template = env.from_string(source)
        except Exception as error:  # jinja2's, or those of Python's compiler: SyntaxError, RecursionError, MemoryError
            self.error = f"the chat template is invalid: {_reason(error)}"
            return
        self.reader = read(source, self._call)

    def render(
        self, prompt: ChatPrompt, seconds: float, escaper: SpecialTokenEscaper | None, write_calls: CallsWriter
    ) -> str:
        if self.error:
            raise BadRequest(self.error)
        add, kwargs = _arguments(prompt)
        add, reader = add and not prompt.continue_final_message, self.reader
        self._roles.check(prompt.messages, prompt.own_roles, reader.example)
        messages, tools = prepare(prompt.messages, reader.capabilities), prepare_tools(prompt.tools, reader.tool_needs)
        if escaper is not None:  # only now: arguments of calls were JSON texts, in which anything can be escaped
            messages, tools, kwargs = escaper.messages(messages), escaper.value(tools), escaper.value(kwargs)
        arranged, shown = reader.arrange(messages, tools, add=add, write_calls=write_calls)
        try:
            text = self._text(prompt, arranged, shown, kwargs, seconds, add=add)
        except BadRequest as error:
            exact = reader.arrange_exactly(messages, tools, add=add, write_calls=write_calls)
            if exact is None or exact == arranged or isinstance(error.__cause__, sandbox.LimitExceeded):
                raise
            text = self._text(prompt, exact, shown, kwargs, seconds, add=add)
        if not text:
            raise BadRequest("Final prompt after applying chat template is empty", param="messages")
        return text

    def _text(
        self, prompt: ChatPrompt, messages: list[Json], tools: list[Json], kwargs: Json, seconds: float, *, add: bool
    ) -> str:
        """Returns the text of a prompt.

        Args:
            prompt: The prompt, which says how the text ends.
            messages: The conversation, in the form that the template reads.
            tools: The tools, in the form that the template reads.
            kwargs: Further template variables.
            seconds: The most CPU seconds.
            add: Whether the prompt ends with the header of an answer.

        Raises:
            BadRequest: The template fails.
        """
        given = tools or self.reader.no_tools
        if prompt.continue_final_message:
            return self._continued(messages, given, kwargs, seconds)
        return self._translate_errors(lambda: self._call(messages, given, add, kwargs, seconds))

    def _continued(self, messages: list[Json], tools: list[Json] | None, kwargs: Json, seconds: float) -> str:
        """Returns the prompt up to the end of the last message's content, which is found by a mark inserted there."""
        last, content = _marked(messages[-1] if messages else {})
        text = self._translate_errors(lambda: self._call([*messages[:-1], last], tools, False, kwargs, seconds))
        at = text.rfind(_MARK)
        if at < 0 or content.strip() not in text:
            raise BadRequest(
                "continue_final_message: the chat template changes or drops the content of the final message",
                param="continue_final_message",
            )
        kept = text.startswith(_MARK + _SPACE, at)  # otherwise the template trims texts, also before the mark
        return text[:at] if kept else text[:at].rstrip()

    @staticmethod
    def _translate_errors(call: Callable[[], str]) -> str:
        """Returns the result of `call`; an exception becomes a BadRequest of one line."""
        try:
            return _without_surrogates(call())
        except TooSlowInline:
            raise
        except sandbox.TemplateRaised as error:
            raise BadRequest(_short(str(error)), param="messages") from error
        except RecursionError as error:
            raise BadRequest("the conversation is nested too deeply for the chat template", param="messages") from error
        except Exception as error:  # a template is a program: it can fail in every way that Python can
            raise BadRequest(f"the chat template failed: {_reason(error)}", param="messages") from error

    def _call(self, messages: list[Json], tools: list[Json] | None, add: bool, kwargs: Json, seconds: float) -> str:
        """Renders the template as transformers does.

        transformers always passes tools and documents, as None if there are none, and templates test for that.
        Templates that only work with tools get an empty list.

        Args:
            messages: The conversation, in the form that the template reads.
            tools: The tools, in the form that the template reads.
            add: Whether the prompt ends with the header of an answer.
            kwargs: Further template variables.
            seconds: The most CPU seconds.
        """
        variables = {"documents": None, **self._tokens, **kwargs}
        return sandbox.render(
            self._template, {**variables, "messages": messages, "tools": tools, "add_generation_prompt": add}, seconds
        )


_MARK, _SPACE = "CONTINUE-HERE-6f1e0c", " "
"""Texts inserted after the content to be continued. The space shows whether the template strips content."""


def _marked(message: Json) -> tuple[Json, str]:
    """Returns the message with a mark after its content or its last text part, and the content without the mark."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + _MARK + _SPACE}, content
    parts = list(content) if isinstance(content, list) else []
    for i in range(len(parts) - 1, -1, -1):
        text = parts[i].get("text") if isinstance(parts[i], dict) else None
        if isinstance(text, str):
            parts[i] = {**parts[i], "text": text + _MARK + _SPACE}
            return {**message, "content": parts}, text
    raise BadRequest(
        "continue_final_message: the final message has no text to continue", param="continue_final_message"
    )


def _arguments(prompt: ChatPrompt) -> tuple[bool, Json]:
    """Returns add_generation_prompt and the other template variables. Raises BadRequest for reserved names."""
    kwargs = prompt.template_kwargs
    if reserved := sorted(RESERVED.intersection(kwargs)):
        raise BadRequest(f"chat_template_kwargs must not set {', '.join(reserved)}", param="chat_template_kwargs")
    if "add_generation_prompt" not in kwargs:
        return prompt.add_generation_prompt, kwargs
    kwargs = dict(kwargs)
    add = kwargs.pop("add_generation_prompt")
    if not isinstance(add, bool):
        raise BadRequest("add_generation_prompt accepts values true or false", param="chat_template_kwargs")
    return add, kwargs


def _without_surrogates(text: str) -> str:
    """Returns a text without unpaired surrogates, which JSON arguments of earlier calls may contain as escapes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _reason(error: Exception) -> str:
    """Describes an error in one line, without the template's text or the server's paths."""
    if isinstance(error, jinja2.TemplateNotFound):
        return f"it includes {error.name}, which does not exist in the model's directory"
    if isinstance(error, jinja2.TemplateSyntaxError):
        return _short(f"{error.message} (line {error.lineno})")
    text = " ".join(str(error).split())
    return _short(text if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {text}")


def _short(text: str) -> str:
    return text if len(text) <= 1000 else text[:999] + "…"


ROLES = ("system", "developer", "user", "assistant", "tool")
_WORD = "word9probe"


class Roles:
    """The roles that a template knows: those of OpenAI, and those that its source names and that it renders."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._known = dict.fromkeys(ROLES, True)

    def check(self, messages: list[Json], own: frozenset[str], render: Callable[[list[Json]], str]) -> None:
        """Raises BadRequest if a message has a role that the template does not know.

        Args:
            messages: The conversation.
            own: The roles of the server's own messages, which are always allowed.
            render: Renders a short conversation; returns "" if that fails.
        """
        for place, message in enumerate(messages):
            role = message.get("role")
            if not isinstance(role, str) or not (role in own or self._knows(role, render)):
                known = ", ".join(one for one, is_known in self._known.items() if is_known)
                what = f"messages[{place}].role must be one of: {known}, not {str(role)[:60]!r}"
                raise BadRequest(what, param=f"messages[{place}].role")

    def _knows(self, role: str, render: Callable[[list[Json]], str]) -> bool:
        if role in self._known:
            return self._known[role]
        if not role or not re.search(rf"""(['"]){re.escape(role)}\1""", self._source):
            return False  # not remembered: a client could name any number of them
        hey, said = {"role": "user", "content": "Hey"}, {"role": role, "content": _WORD}
        texts = [render(talk) for talk in ([said], [said, hey], [hey, said])]
        self._known[role] = any(_WORD in text for text in texts) or not any(texts)  # it may need another order of roles
        return self._known[role]


ZERO_WIDTH_SPACE = "\u200b"
_TRUSTED = ("system", "developer")
"""The roles whose messages the application writes."""


class SpecialTokenEscaper:
    """Escapes special tokens in the texts of users and tools (--neutralize_special_tokens).

    A prompt is tokenized as one text, so "<|im_end|>" in a message would become the token that ends messages in the
    template, and could forge a role. Each such text gets a zero-width space (U+200B) after its first character: it
    looks the same, but is tokenized as ordinary text.
    """

    def __init__(self, special: Iterable[str]) -> None:
        words = sorted(word for word in set(special) if len(word) > 1)
        # Looks ahead and takes one character, so that texts that overlap are found as well.
        self._pattern = re.compile(f"(?={'|'.join(map(re.escape, words))})(.)", re.DOTALL) if words else None

    def messages(self, messages: list[Json]) -> list[Json]:
        """Returns a copy of the conversation with escaped texts, except those of the application."""
        return [
            message if message.get("role") in _TRUSTED else self.value(message)  # a role is text of the prompt, too
            for message in messages
        ]

    def value(self, value: Any) -> Any:
        """Returns a JSON value with all strings and keys escaped."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self.value(part) for part in value]
        return value

    def text(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(rf"\1{ZERO_WIDTH_SPACE}", text)

"""The body of POST …/responses, read: what to generate, what to keep, and what the answer repeats of it.

What cannot be honoured and would change the answer is refused; what would not is echoed (contract section 2.7,
https://platform.openai.com/docs/api-reference/responses/create). Knows no store and no stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from ...errors import BadRequest
from ...model import Model
from ...shapes import ChatPrompt, Json, Output, Sampling
from ..answers import model_name, warnings
from ..app import App
from ..fields import UINT32_MAX, Row, read
from ..messages import read_messages, read_tools
from ..sampling import SAMPLING, Defaults, Limits, build_output, build_sampling
from .items import read_input, to_messages

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
INCLUDABLE = {
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
}
"""OpenAI's closed list. All but the first are about items that never occur here, or that are whole without it."""

MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512


def _metadata(value: Json) -> Json:
    if len(value) > MAX_METADATA:
        raise BadRequest(f"metadata must have no more than {MAX_METADATA} entries", param="metadata")
    for key, text in value.items():
        if len(key) > MAX_METADATA_KEY:
            raise BadRequest(f"a metadata key must have no more than {MAX_METADATA_KEY} characters", param="metadata")
        if not isinstance(text, str) or len(text) > MAX_METADATA_VALUE:
            raise BadRequest(
                f"a metadata value must be a string of no more than {MAX_METADATA_VALUE} characters", param="metadata"
            )
    return value


METADATA = Row(name="metadata", kind="object", help="up to 16 strings by name, kept and echoed", read=_metadata)


def _include(value: list[Any]) -> list[str]:
    for word in value:
        if word not in INCLUDABLE:
            raise BadRequest(
                f"include: {str(word)[:60]!r} is not one of {', '.join(sorted(INCLUDABLE))}", param="include"
            )
    return value


def _conversation(value: Any) -> str:
    name = value.get("id") if isinstance(value, dict) else value
    if not isinstance(name, str) or not name:
        raise BadRequest("conversation must be an id, or an object with one", param="conversation")
    return name


def _reasoning(value: Json) -> Json:
    effort = value.get("effort")
    if effort is not None and not isinstance(effort, str):
        raise BadRequest("reasoning.effort is not a string", param="reasoning.effort")
    if effort is not None and effort not in EFFORTS:
        raise BadRequest(f"reasoning.effort must be one of: {', '.join(EFFORTS)}", param="reasoning.effort")
    summary = value.get("summary", value.get("generate_summary"))
    if summary not in (None, "auto", "concise", "detailed"):
        raise BadRequest("reasoning.summary must be one of: auto, concise, detailed", param="reasoning.summary")
    return {"effort": effort, "summary": summary}


def _truncation(value: str) -> str:
    if value not in ("auto", "disabled"):
        raise BadRequest("truncation should be either 'auto' or 'disabled'", param="truncation")
    return value


def _text(value: Json) -> Json:
    form = value.get("format") or {"type": "text"}
    if not isinstance(form, dict) or form.get("type") not in ("text",):
        raise BadRequest("text.format: only {'type': 'text'} is supported", param="text.format")
    verbosity = value.get("verbosity")
    if verbosity not in (None, "low", "medium", "high"):
        raise BadRequest("text.verbosity must be one of: low, medium, high", param="text.verbosity")
    return {"format": form} if verbosity is None else {"format": form, "verbosity": verbosity}


def _stream_options(value: Json) -> Json:
    for name, flag in value.items():
        if name not in ("include_obfuscation", "include_usage"):
            raise BadRequest(
                "Found unexpected stream options. Properties accepted in stream_options: include_obfuscation, "
                "include_usage",
                param="stream_options",
            )
        if flag is not None and not isinstance(flag, bool):
            raise BadRequest(f"stream_options.{name} is not a boolean", param=f"stream_options.{name}")
    return value


FIELDS = (
    Row(name="input", kind="any", help="a text, or items: messages, reasoning, calls and their outputs, references"),
    Row(name="instructions", kind="string", help="a system message in front of everything; not kept for later turns"),
    Row(name="previous_response_id", kind="string", help="go on from a stored response"),
    Row(name="conversation", kind="any", help="go on in a stored conversation, and add to it", read=_conversation),
    Row(name="store", kind="bool", help="keep the response (default true)"),
    Row(name="background", kind="bool", help="answer at once, generate on; needs store"),
    Row(name="stream", kind="bool", help="answer with server-sent events", wrong="stream field is not a boolean"),
    Row(name="stream_options", kind="object", help="include_obfuscation; usage always comes", read=_stream_options),
    Row(
        name="max_output_tokens",
        kind="uint",
        high=UINT32_MAX,
        help="most tokens to generate, reasoning included",
        outside=f"max_output_tokens value can't be greater than {UINT32_MAX}",
    ),
    Row(name="tools", kind="any", help="functions that the model may call, flat or nested; no built-in tools"),
    Row(name="tool_choice", kind="any", help="none, auto, required, one function, or allowed_tools"),
    Row(name="parallel_tool_calls", kind="bool", help="false: the response ends with its first call"),
    Row(name="max_tool_calls", kind="uint", help="echoed; it counts built-in tools, of which there are none"),
    Row(name="reasoning", kind="object", help="effort: enable_thinking and reasoning_effort for the chat template",
        read=_reasoning),
    Row(name="text", kind="object", help="format: text; verbosity: given to the chat template", read=_text),
    Row(name="truncation", kind="string", help="auto: drop the oldest items of an input that is too long",
        read=_truncation),
    Row(name="include", kind="array", help="message.output_text.logprobs", read=_include),
    Row(name="logprobs", kind="bool", help="the same as to include message.output_text.logprobs"),
    Row(name="top_logprobs", kind="uint", high=20, help="accepted; only the chosen token is known"),
    METADATA,
    Row(name="user", kind="string", help="echoed"),
    Row(name="safety_identifier", kind="string", help="echoed"),
    Row(name="prompt_cache_key", kind="string", help="echoed"),
    Row(name="prompt_cache_retention", kind="string", help="echoed"),
    Row(name="service_tier", kind="string", help="accepted; there is one"),
    Row(
        name="chat_template_kwargs",
        kind="object",
        help="variables for the chat template, such as enable_thinking",
        wrong="chat_template_kwargs must be an object",
    ),
)  # fmt: skip

MODEL = Row(name="model", kind="string", help="name of a served model", wrong="model field is not a string")

REFUSED = {
    "prompt": "stored prompt templates are not supported: send instructions and input",
    "context_management": "context management is not supported: send truncation, or a shorter input",
    "moderation": "moderation is not supported",
}
"""Fields that would change the answer and cannot be honoured."""

_SAMPLING = tuple(row for row in SAMPLING if row.name != "max_tokens")
"""max_tokens and max_completion_tokens are not fields of this API, as in OVMS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A responses request, read. items: its own input, with references not resolved.

    echo: what the response object repeats. tools: those the model may call now.
    """

    model: Model
    items: list[Json]
    instructions: str | None
    previous: str | None
    conversation: str | None
    store: bool
    background: bool
    stream: bool
    obfuscate: bool
    shorten: bool
    one_call: bool
    truncate: int | None
    tools: list[Json]
    template_kwargs: Json
    sampling: Sampling
    output: Output
    echo: Json
    headers: list[tuple[str, str]]

    def prompt(self, items: list[Json]) -> ChatPrompt:
        """The prompt of a whole context. Raises BadRequest for content that the model cannot read."""
        messages = to_messages(items)
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        if any(message["role"] == "developer" for message in messages) and not reads_developer(self.model):
            messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
        try:
            read_messages(messages)
        except BadRequest as error:
            error.param = "input"
            raise
        return ChatPrompt(messages=messages, tools=self.tools, template_kwargs=self.template_kwargs)


_reading: WeakKeyDictionary[Model, bool] = WeakKeyDictionary()


def reads_developer(model: Model) -> bool:
    """Whether the model's chat template shows what a developer says; many drop it without a word, or refuse it."""
    if model not in _reading:
        probe = "probe9needle"
        messages = [{"role": "developer", "content": probe}, {"role": "user", "content": "Hey"}]
        try:
            _reading[model] = probe in model.render(ChatPrompt(messages=messages))
        except BadRequest:
            _reading[model] = False
    return _reading[model]


def read_ask(body: Json, app: App) -> Ask:
    """Body to Ask. Raises RequestError."""
    _refuse(body)
    values = read((MODEL, *FIELDS, *_SAMPLING), body)
    model = app.model(model_name(values))
    _check_together(values)
    tools, choice = _tools(values["tools"], values["tool_choice"])
    defaults = Defaults(model.directory.generation_config)
    logprobs = _wants_logprobs(values)
    sampling = _sampling(values, defaults, app, logprobs)
    output = build_output(values, defaults, stream=bool(values["stream"]), parse=True, tools=tools)
    return Ask(
        model=model,
        items=[] if values["input"] is None else read_input(values["input"]),
        instructions=values["instructions"],
        previous=values["previous_response_id"],
        conversation=values["conversation"],
        store=values["store"] is not False,
        background=bool(values["background"]),
        stream=bool(values["stream"]),
        obfuscate=bool((values["stream_options"] or {}).get("include_obfuscation")),
        shorten=values["truncation"] == "auto",
        one_call=values["parallel_tool_calls"] is False,
        truncate=values["truncate_prompt_tokens"],
        tools=tools,
        template_kwargs=_template_kwargs(values),
        sampling=sampling,
        output=output,
        echo=_echo(values, choice, sampling),
        headers=warnings(body, ["top_logprobs holds no alternatives"] if values["top_logprobs"] else []),
    )


def _refuse(body: Json) -> None:
    for name, why in REFUSED.items():
        if body.get(name):
            raise BadRequest(why, param=name)


def _check_together(values: Json) -> None:
    if values["stream_options"] is not None and not values["stream"]:
        raise BadRequest("stream_options provided, but stream not set to true", param="stream_options")
    if values["input"] is None and not values["previous_response_id"] and not values["conversation"]:
        raise BadRequest("input missing in request", param="input")
    if values["previous_response_id"] and values["conversation"]:
        raise BadRequest("previous_response_id and conversation exclude each other", param="previous_response_id")
    if values["store"] is False:
        for name in ("background", "conversation"):
            if values[name]:
                raise BadRequest(f"{name} needs store: with store false nothing is kept", param=name)


def _sampling(values: Json, defaults: Defaults, app: App, logprobs: bool) -> Sampling:
    most, asked = app.config.max_tokens_limit, values["max_output_tokens"]
    if asked == 0:
        raise BadRequest("max_output_tokens value should be greater than 0", param="max_output_tokens")
    if most and asked is not None and asked > most:
        raise BadRequest(f"max_output_tokens exceeds limit of this server: {most}", param="max_output_tokens")
    limits = Limits(max_tokens=most, sequences=app.config.best_of_limit)
    return build_sampling({**values, "max_tokens": asked}, defaults, limits, logprobs=logprobs)


def _wants_logprobs(values: Json) -> bool:
    return bool(
        values["logprobs"] or values["top_logprobs"] or "message.output_text.logprobs" in (values["include"] or ())
    )


def _tools(tools: Any, choice: Any) -> tuple[list[Json], str | Json]:
    """(tools for the prompt, tool_choice as OpenAI writes it). Raises BadRequest."""
    if isinstance(tools, list):
        tools = [_without_nulls(tool) for tool in tools]
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(tools, choice), choice
    left, read_choice = read_tools(tools, choice)
    if isinstance(read_choice, dict):
        return left, {"type": "function", "name": read_choice["function"]["name"]}
    return left, read_choice


def _without_nulls(tool: Any) -> Any:
    """OpenAI's clients write null for parameters and strict that are not given."""
    return {key: value for key, value in tool.items() if value is not None} if isinstance(tool, dict) else tool


def _allowed(tools: Any, choice: Json) -> list[Json]:
    mode, names = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required") or not isinstance(names, list):
        raise BadRequest("tool_choice allowed_tools needs a mode (auto, required) and tools", param="tool_choice")
    offered, _ = read_tools(tools, mode)
    allowed = [tool.get("name") if isinstance(tool, dict) else None for tool in names]
    kept = [tool for tool in offered if tool["function"]["name"] in allowed]
    missing = set(allowed) - {tool["function"]["name"] for tool in kept}
    if missing:
        raise BadRequest("tool_choice allows a tool that is not among the tools", param="tool_choice")
    return kept


def _template_kwargs(values: Json) -> Json:
    kwargs = dict(values["chat_template_kwargs"] or {})
    effort = (values["reasoning"] or {}).get("effort")
    if effort is not None:
        kwargs.setdefault("enable_thinking", effort != "none")
        kwargs.setdefault("reasoning_effort", effort)
    verbosity = (values["text"] or {}).get("verbosity")
    if verbosity is not None:
        kwargs.setdefault("verbosity", verbosity)
    return kwargs


def _echo(values: Json, choice: str | Json, sampling: Sampling) -> Json:
    """The response object's fields that repeat the request, in the contract's order."""
    offered, _ = read_tools(values["tools"] and [_without_nulls(tool) for tool in values["tools"]], None)
    echo: Json = {
        "parallel_tool_calls": values["parallel_tool_calls"] is not False,
        "store": values["store"] is not False,
        "temperature": sampling.temperature,
        "text": values["text"] or {"format": {"type": "text"}},
        "tool_choice": choice,
        "tools": [{"type": "function", "strict": None, "parameters": None, **t["function"]} for t in offered],
        "top_p": sampling.top_p,
    }
    if values["min_p"] is not None:
        echo["min_p"] = values["min_p"]
    conversation = values["conversation"]
    return echo | {
        "truncation": values["truncation"] or "disabled",
        "metadata": values["metadata"] or {},
        "max_output_tokens": sampling.max_tokens,
        "background": bool(values["background"]),
        "conversation": None if conversation is None else {"id": conversation},
        "instructions": values["instructions"],
        "max_tool_calls": values["max_tool_calls"],
        "previous_response_id": values["previous_response_id"],
        "prompt_cache_key": values["prompt_cache_key"],
        "prompt_cache_retention": values["prompt_cache_retention"],
        "reasoning": values["reasoning"] or {"effort": None, "summary": None},
        "safety_identifier": values["safety_identifier"],
        "service_tier": "default",
        "top_logprobs": values["top_logprobs"] or 0,
        "user": values["user"],
    }

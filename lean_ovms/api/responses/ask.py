"""The body of POST …/responses, read: what to generate, what to keep, and what the answer repeats of it.

What cannot be honoured and would change the answer is refused; what would not is echoed. Knows no store and no stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from ...errors import BadRequest
from ...model import Model
from ...shapes import ChatPrompt, Guide, Json, Output, Sampling
from ..answers import model_name, warnings
from ..app import App
from ..fields import read
from ..formats import ToolRule, read_guide, with_tools
from ..messages import read_messages, read_tools
from ..sampling import Defaults, Limits, build_output, build_sampling
from .echo import echo, without_nulls
from .items import read_input, to_messages
from .rows import REFUSED, ROWS, TEXT_FORMAT


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
    values = read(ROWS, body)
    model = app.model(model_name(values))
    _check_together(values)
    tools, choice = _tools(values)
    rule = ToolRule.read(tools, choice, values["parallel_tool_calls"])
    defaults = Defaults(model.directory.generation_config)
    sampling = _sampling(values, defaults, app)
    output = build_output(values, defaults, stream=bool(values["stream"]), parse=True, tools=tools)
    guide, dropped = _guide(values, app)
    top = ["top_logprobs holds no alternatives"] if values["top_logprobs"] else []
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
        one_call=rule.offered and not rule.parallel,
        truncate=values["truncate_prompt_tokens"],
        tools=tools,
        template_kwargs=_template_kwargs(values),
        sampling=sampling,
        output=replace(output, guide=with_tools(guide, rule, app.config, sampling)),
        echo=echo(values, sampling),
        headers=warnings(body, top + dropped),
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


def _sampling(values: Json, defaults: Defaults, app: App) -> Sampling:
    most, asked = app.config.max_tokens_limit, values["max_output_tokens"]
    if asked == 0:
        raise BadRequest("max_output_tokens value should be greater than 0", param="max_output_tokens")
    if most and asked is not None and asked > most:
        raise BadRequest(f"max_output_tokens exceeds limit of this server: {most}", param="max_output_tokens")
    limits = Limits(max_tokens=most, sequences=app.config.best_of_limit)
    return build_sampling({**values, "max_tokens": asked}, defaults, limits, logprobs=_wants_logprobs(values))


def _wants_logprobs(values: Json) -> bool:
    return bool(
        values["logprobs"] or values["top_logprobs"] or "message.output_text.logprobs" in (values["include"] or ())
    )


def _guide(values: Json, app: App) -> tuple[Guide | None, list[str]]:
    """The form of the answer, from OpenAI's text.format or from OVMS's and vLLM's fields. Raises BadRequest."""
    form = (values["text"] or {}).get("format", TEXT_FORMAT)
    if form == TEXT_FORMAT:
        return read_guide(values, app.config)
    if values["response_format"] is not None:
        raise BadRequest("text.format and response_format exclude each other", param="text.format")
    try:
        guide, dropped = read_guide({**values, "response_format": form}, app.config)
    except BadRequest as error:
        error.param = _in_text(error.param or "")
        error.message = _in_text(error.message)
        raise
    return guide and replace(guide, param=_in_text(guide.param)), [_in_text(text) for text in dropped]


def _in_text(said: str) -> str:
    """The name under which the client knows it."""
    return said.replace("response_format", "text.format")


def _tools(values: Json) -> tuple[list[Json], str | Json]:
    """(tools for the prompt, tool_choice) as read_tools returns them."""
    return read_tools(without_nulls(values["tools"]), values["tool_choice"])


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

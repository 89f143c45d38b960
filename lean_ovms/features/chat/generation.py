"""GenerationBody, the common body of all generating endpoints apart from the prompt: how it is read and started.

The fields `tools`, `tool_choice` and `parallel_tool_calls` say which tools the model is offered, and what it must call.
Together with the fields that constrain the answer's form (FORMS) they become one constraint, which the feature for
structured output builds. Their rules and error texts are OVMS's and OpenAI's; request.py names the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from ...api.fields import Values, read
from ...api.generation import common_fields
from ...api.generation.common_fields import FORMS, idle_fields, stream_options
from ...api.generation.sampling import Defaults, GenerationFields, build_output, build_sampling, check_max_tokens
from ...api.response import warning_headers
from ...api.router import follows_ovms
from ...api.services import Services
from ...config import Config
from ...errors import BadRequest, counted
from ...manifest import ANSWER_RULES, named
from ...models.generation import DeltaStream, Generation, WrappedStream
from ...models.text_model import TextModel
from ...observability.records import current_record
from ...types import (
    ChatPrompt,
    Delta,
    Json,
    OutputConstraint,
    OutputParams,
    Prompt,
    SamplingParams,
    Text,
    ToolCallStart,
    ToolOffer,
)
from ...types.push import Sink
from .content import read_media
from .logprobs import LogprobsRequest, check_many

NO_TOOLS = ToolOffer([])


def read_offer(tools: Any, choice: Any, parallel: bool | None) -> ToolOffer:
    """Reads the values of `tools`, `tool_choice` and `parallel_tool_calls`. Raises BadRequest."""
    if tools is None and choice is None:
        return NO_TOOLS
    tools, choice = read_tools(tools, choice)
    several = False if isinstance(choice, dict) else parallel  # a named function is called once, as OpenAI does
    strict = any(tool["function"].get("strict") is True for tool in tools)
    return ToolOffer(tools, choice != "auto", several, strict)


class ReadRule(Protocol):
    """Builds the constraint on the answer of a request."""

    def __call__(
        self, asked: Json, offer: ToolOffer, config: Config, sampling: SamplingParams, *, combines: bool
    ) -> tuple[OutputConstraint | None, list[str]]:
        """Returns the constraint on the answer, None if any text is allowed, and warnings about what is not enforced.

        Args:
            asked: The values of the fields in FORMS that the client sets, by name.
            offer: The tools that may be called, and whether one must be.
            config: The model's configuration.
            sampling: The parameters of the request.
            combines: Whether the engine can combine grammars with beam search and min_tokens.

        Raises:
            BadRequest: A form is invalid or too large, or is incompatible with another form or a required call.
        """


WITHOUT = "which is off on this server"


def answer_rule(
    values: Values, offer: ToolOffer, config: Config, sampling: SamplingParams, *, combines: bool
) -> tuple[OutputConstraint | None, list[str]]:
    """Returns the constraint on the answer, None if any text is allowed, and warnings about what is not enforced.

    The feature for structured output builds it. A server without this feature refuses requests that need a constraint.

    Args:
        values: The values of the body.
        offer: The tools that may be called, and whether one must be.
        config: The model's configuration.
        sampling: The parameters of the request.
        combines: Whether the engine can combine grammars with beam search and min_tokens.

    Raises:
        BadRequest: The constraint is invalid, or the server cannot enforce it.
    """
    asked = {name: values[name] for name in FORMS if values.get(name) is not None}
    if not asked and not offer.tools:
        return None, []
    read: ReadRule | None = config.part(ANSWER_RULES)
    if read is not None:
        return read(asked, offer, config, sampling, combines=combines)
    for name, value in asked.items():
        if value != {"type": "text"}:
            raise BadRequest(f"{name} needs structured output, {WITHOUT}", param=name)
    if offer.tools and offer.required:
        raise BadRequest(f"a tool_choice that requires a call needs structured output, {WITHOUT}", param="tool_choice")
    if offer.tools and offer.strict:
        raise BadRequest(f"a strict tool needs structured output, {WITHOUT}", param="tools")
    return None, []


def read_tools(tools: Any, choice: Any) -> tuple[list[Json], str | Json]:
    """Returns the tools that tool_choice leaves, in OpenAI's nested form, and the choice itself.

    "none" leaves no tools, a named function that one, and allowed_tools those that it lists. Raises BadRequest.
    """
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(tools, choice)
    if not isinstance(tools, list | None):
        raise BadRequest("Tools are not an array", param="tools")
    found = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())]
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise BadRequest("tool_choice should be either 'none' or 'auto' or 'required'", param="tool_choice")
        if choice == "required" and not found:
            raise BadRequest("tool_choice is required, but no tools are given", param="tool_choice")
        return ([] if choice == "none" else found), choice
    if choice is None:
        return found, "auto"
    if not isinstance(choice, dict):
        raise BadRequest("tool_choice is not a valid JSON object or string", param="tool_choice")
    name = _named(choice)
    kept = [tool for tool in found if tool["function"]["name"] == name]
    if not kept:
        raise BadRequest(f"tool_choice names {name!r}, which is not in tools", param="tool_choice")
    return kept, {"type": "function", "function": {"name": name}}


def _allowed(tools: Any, choice: Json) -> tuple[list[Json], str | Json]:
    """Returns the tools and the choice for a tool_choice of the type "allowed_tools".

    OpenAI nests "mode" and "tools" under "allowed_tools" in chat; the Responses API has them at the top level.
    """
    inner = choice.get("allowed_tools", choice)
    mode, listed = (inner.get("mode"), inner.get("tools")) if isinstance(inner, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(listed, list):
        raise BadRequest(
            "tool_choice of type allowed_tools needs a mode (auto or required) and tools", param="tool_choice"
        )
    names = {_named(tool) for tool in listed if isinstance(tool, dict)}
    found, _ = read_tools(tools, None)
    kept = [tool for tool in found if tool["function"]["name"] in names]
    if names - {tool["function"]["name"] for tool in kept} or not kept:
        raise BadRequest("tool_choice allows a tool that is not in tools", param="tool_choice")
    return kept, mode


def _tool(tool: Any, param: str) -> Json:
    """Returns one tool in OpenAI's nested form. The flat form of the Responses API is accepted too."""
    if not isinstance(tool, dict):
        raise BadRequest("Tool is not a JSON object", param=param)
    if "function" in tool:
        function = tool["function"]
        if not isinstance(function, dict):
            raise BadRequest("Function is not a valid JSON object", param=param)
        function = {key: value for key, value in function.items() if value is not None}
    else:
        if not isinstance(tool.get("type"), str):
            raise BadRequest("Tool type is missing or invalid", param=param)
        if tool["type"] != "function":
            raise BadRequest("Only function tools are supported", param=param)
        function = {key: value for key, value in tool.items() if key != "type" and value is not None}
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise BadRequest("Function object does not contain a valid name field", param=f"{param}.function.name")
    if "parameters" in function and not isinstance(function["parameters"], dict):
        raise BadRequest("Function parameters are not a valid JSON object", param=f"{param}.function.parameters")
    return {**(tool if "function" in tool else {}), "type": "function", "function": function}


def _named(choice: Json) -> str:
    function = choice.get("function")
    if function is None:
        name = choice.get("name")
        if not isinstance(name, str):
            raise BadRequest("tool_choice.name is not a valid string", param="tool_choice")
        return name
    if not isinstance(function, dict):
        raise BadRequest("tool_choice.function is not a valid JSON object", param="tool_choice")
    if not isinstance(function.get("name"), str):
        raise BadRequest("tool_choice.function.name is not a valid string", param="tool_choice")
    return str(function["name"])


NOTHING: Values = MappingProxyType({})
NO_LOGPROBS = LogprobsRequest()
SHARED_CACHE = (
    "cache_salt has no effect: this pipeline shares cached prompts between all requests; start the server with "
    "--pipeline_type PAGED or --enable_prefix_caching false"
)
"""GenAI finds cached blocks by their tokens alone, so no request can be kept out of the shared cache."""


@dataclass(slots=True, kw_only=True)
class GenerationBody:
    """A request to generate text, apart from its prompt. It is not changed once it is built."""

    model: TextModel
    """The model that generates."""
    services: Services
    """The services of the server."""
    sampling: SamplingParams
    """How tokens are sampled."""
    output: OutputParams
    """How tokens become text and events."""
    logprobs: LogprobsRequest
    """The log probabilities that the client requests."""
    stream: bool
    """Whether the client requests a stream."""
    stream_options: dict[str, bool]
    """The options of stream_options, by name."""
    named_by_id: bool
    """Whether tokens in log probabilities are named by their ids."""
    tools: list[Json]
    """The tools that the model may call."""
    one_call: bool
    """Whether the generation ends before a second tool call."""
    calls_only: bool
    """Whether the generation ends at text after a tool call."""
    truncate: int | None
    """The number of prompt tokens to keep, -1 for as many as fit; None to keep all."""
    truncation_side: str
    """The end of the prompt at which tokens are cut off, "left" or "right"."""
    priority: int
    """The priority among the requests of one client. Lower values start first."""
    notices: list[str]
    """Warnings about parts of the request that have no effect, as sentences."""

    @property
    def headers(self) -> list[tuple[str, str]]:
        """A Warning header for each notice."""
        return warning_headers(self.notices)

    async def start(self, prompt: Prompt, *, echo: bool = False) -> Generation:
        """Starts generating from a prompt, whose token ids it keeps for an answer with `echo`. Raises RequestError."""
        notices: list[str] = []
        if isinstance(prompt, ChatPrompt):
            prompt, notices = await read_media(prompt, self.model, self.services)
        generation = await self.model.start(
            prompt,
            self.sampling,
            self.output,
            truncate=self.truncate,
            truncation_side=self.truncation_side,
            echo=echo,
            priority=self.priority,
        )
        generation.warnings += notices
        return generation

    async def count(self, prompt: ChatPrompt) -> int:
        """Returns the number of tokens of a prompt. Raises RequestError."""
        prompt, _ = await read_media(prompt, self.model, self.services)
        return await self.model.count(prompt)

    def ending_at(self, tokens: Sequence[int]) -> GenerationBody:
        """Returns a copy of this request with additional tokens that end the text."""
        ends = (*self.sampling.stop_token_ids, *tokens)
        return replace(self, sampling=replace(self.sampling, stop_token_ids=ends))

    def deltas(self, generation: Generation) -> DeltaStream:
        """Returns the deltas of a started generation, which end after tool calls as one_call and calls_only say."""
        if not self.one_call and not self.calls_only:
            return generation
        return LimitedCalls(generation, self.sampling.n, one=self.one_call, only=self.calls_only)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableBody:
    """A request body after the fields of other APIs' clients were converted (manifest.BodyRow)."""

    body: Json
    """The body, with the endpoint's own field names."""
    unlimited: bool = False
    """Whether a body without a token limit generates as many tokens as fit, whatever the endpoint's default is."""
    parse_reasoning: bool = True
    """Whether reasoning is separated from the text."""
    parse_calls: bool = True
    """Whether tool calls are separated from the text."""
    notices: tuple[str, ...] = ()
    """Warnings about fields of other APIs that have no effect, as sentences."""


class BodyReader:
    """Reads a request body, finds its model, and builds the GenerationBody.

    An endpoint creates it, checks and renames the fields that only this endpoint has, and calls `generation`. The order
    of the checks decides which of several errors a client gets.
    """

    __slots__ = ("_body", "_fields", "_services", "_stream_options", "model", "values")

    def __init__(
        self, fields: GenerationFields, body: Json, services: Services, *, other_clients: bool = False
    ) -> None:
        """Reads the fields of a body, and finds its model.

        Args:
            fields: The fields of the endpoint.
            body: The body of the request.
            services: The services of the server.
            other_clients: Whether clients of other APIs use the endpoint too, with additional fields.

        Raises:
            RequestError: The value of a field is wrong, or the server has no such model.
        """
        readable = ReadableBody(body=body)
        for row in services.config.composition.bodies if other_clients else ():
            if not body.keys().isdisjoint(row.names):
                readable = named(row.package, row.rewrite)(readable, fields.names)
        self.values = values = read(fields, readable.body)
        self.model = services.named_model(values, TextModel)
        if record := current_record.get():
            record.stream = values["stream"]
        self._fields, self._body, self._services = fields, readable, services
        place = fields.places.get("stream_options")
        self._stream_options = {} if place is None else stream_options(fields[place], values)
        if services.config.enable_force_include_usage and "include_usage" in self._stream_options:
            self._stream_options["include_usage"] = True

    def check_max_tokens(self, name: str) -> None:
        """Raises BadRequest if the value of this field exceeds the server's token limit."""
        check_max_tokens(name, self.values[name] or 0, self.model.config)

    def generation(
        self,
        renamed: Values = NOTHING,
        *,
        offer: ToolOffer = NO_TOOLS,
        logprobs: LogprobsRequest = NO_LOGPROBS,
        parsed: bool = True,
        default_max_tokens: int = 0,
        max_tokens_name: str = "max_tokens",
    ) -> GenerationBody:
        """Builds the request from the values of the body.

        Args:
            renamed: Values that have a different name or form in this API, under the names that all APIs share.
            offer: The tools that may be called, and whether one must be.
            logprobs: The log probabilities that the client requests.
            parsed: Whether reasoning and tool calls are separated from the text.
            default_max_tokens: The limit of generated tokens where neither the request, an option nor
                generation_config.json has one; 0 for as many as fit.
            max_tokens_name: The endpoint's own name of the limit, which takes precedence over max_tokens.

        Raises:
            RequestError: Values do not go together, or the model cannot do what they ask for.
        """
        values, model, config = self.values, self.model, self.model.config
        by_id = self._services.config.return_tokens_as_token_ids
        capabilities, stream = model.capabilities, values["stream"]
        parts = self._services.config.composition.parts
        unread = [name for name, need in self._fields.needs.items() if need not in capabilities]
        unread += [name for name, seam in self._fields.seams.items() if seam not in parts]
        dropped, shared = [*unread], []
        if values["cache_salt"] and not (config.enable_prefix_caching and "cache_salt" in capabilities):
            dropped.append("cache_salt")
            shared = [SHARED_CACHE] * config.enable_prefix_caching
        asked = {**values, **renamed} if renamed else values
        given = {**asked, **dict.fromkeys(dropped)} if dropped else asked
        defaults = Defaults(model.directory.generation_config, 0 if self._body.unlimited else default_max_tokens)
        sampling = build_sampling(given, defaults, config)
        if sampling.max_tokens == 0:
            name = "max_tokens" if values[max_tokens_name] is None else max_tokens_name
            raise BadRequest("max_tokens value should be greater than 0", param=name)
        combines = "beam_control" in capabilities
        rule, notices = answer_rule(asked, offer, config, sampling, combines=combines)
        record = current_record.get()
        if rule is not None and (record is None or not follows_ovms(record)):
            rule = replace(rule, checked=True)
        known = "alternatives" in capabilities
        vocab = model.info.vocab_size if model.known else 0
        logprobs = logprobs.resolve(known=known, limit=config.max_logprobs, vocab=vocab)
        if reported := logprobs.sampling_fields(sampling, stream=stream, known=known):
            sampling = replace(sampling, **reported)
        unknown = [] if known else logprobs.unknown(sampling)
        output = build_output(given, defaults, stream=stream)
        output.parse = parsed and output.skip_special_tokens
        output.parse_reasoning, output.parse_calls = self._body.parse_reasoning, self._body.parse_calls
        output.tools, output.parallel, output.constraint = tuple(offer.tools), offer.parallel, rule
        return GenerationBody(
            model=model,
            services=self._services,
            sampling=sampling,
            output=output,
            logprobs=logprobs,
            stream=stream,
            stream_options=self._stream_options,
            named_by_id=by_id or values.get("return_tokens_as_token_ids", False),
            tools=offer.tools,
            one_call=bool(offer.tools) and offer.parallel is False,
            calls_only=bool(offer.tools) and offer.required,
            truncate=given["truncate_prompt_tokens"],
            truncation_side=given["truncation_side"],
            priority=given["priority"],
            notices=common_fields.warnings(self._fields, self._body.body, unread)
            + [*self._body.notices]
            + idle_fields(values, sampling, model.info.speculative if model.known else None, dropped)
            + (unknown + shared + notices)
            + model.keep_loaded(values.get("keep_alive")),
        )


def check_sequences(prompts: int, sampling: SamplingParams, config: Config, param: str = "prompt") -> None:
    """Raises BadRequest if a request has too many sequences, or too many log probabilities for them."""
    check_many(sampling.top_logprobs, sampling, "logprobs", stream=False, prompts=prompts)
    each, limit = max(sampling.n, sampling.beams), config.max_sequences_per_request
    if prompts * each > limit:
        asked = f"{counted(prompts, 'prompt')} with {counted(each, 'sequence')} each"
        why = f"{asked} in one request exceed this server's limit of {counted(limit, 'sequence')}"
        raise BadRequest(why, param="best_of" if sampling.beams > sampling.n else "n" if each > 1 else param)


class LimitedCalls(WrappedStream):
    """A stream of deltas that stops each choice after its tool calls, and ends once all choices have ended."""

    def __init__(self, generation: Generation, choices: int, *, one: bool, only: bool) -> None:
        """Wraps a started generation.

        Args:
            generation: The generation.
            choices: The number of its choices.
            one: Whether a choice stops before its second call.
            only: Whether a choice stops at text after a call.
        """
        super().__init__(generation)
        self._running = set(range(choices))
        self._called: set[int] = set()
        self._one = one
        self._only = only

    async def push_to(self, sink: Sink[list[Delta]]) -> None:
        await self._stream.push_to(Sink(partial(self._push, sink.push), sink.paused))

    def _push(self, push: Callable[[list[Delta]], object], deltas: list[Delta]) -> None:
        deltas = [self._cut(delta) for delta in deltas if delta.index in self._running]
        self._running -= {delta.index for delta in deltas if delta.finish is not None}
        push(deltas)
        if not self._running:
            self.finish("stop")

    def _cut(self, delta: Delta) -> Delta:
        for place, event in enumerate(delta.events):
            if isinstance(event, ToolCallStart):
                self._called.add(delta.index)
                over = self._one and event.index > 0
            else:
                over = self._only and isinstance(event, Text) and delta.index in self._called
            if over:
                return Delta(delta.index, events=delta.events[:place], tokens=delta.tokens, finish="stop")
        return delta

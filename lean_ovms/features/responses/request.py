"""The body of POST …/responses: the reading of its fields, and the start of its generation.

A field that this server cannot honour is refused if it would change the answer; otherwise the response repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...api.fields import Values
from ...api.generation.common_fields import template_kwargs
from ...api.response import warning_headers
from ...api.services import INLINE_BYTES, Services
from ...config import Config
from ...errors import TOO_LONG, BadRequest, MissingExtra, errors_of
from ...manifest import ANSWER_RULES, SERVER_TOOLS
from ...models.generation import Generation
from ...types import ChatPrompt, Json, Request
from ...util import chunked_json
from ...util.chunked_json import Written
from ..chat.generation import BodyReader, GenerationBody, read_offer
from ..chat.logprobs import LogprobsRequest
from ..chat.request import AnswerAudio, errors_of_input, read_messages, read_spoken
from ..chat.tools import read_tools
from .agent_tools import AgentTools, load, read_agent_tools
from .compaction import role_of
from .fields import ALL_FIELDS, REFUSED, TEXT_FORMAT
from .foreign_items import unshown
from .items import read_input, to_messages
from .response import ResponseObject
from .sealing import Sealer
from .service import ResponseService
from .store import Context
from .tool_forms import KIND, ServerTool

ITEM_BYTES, TOOL_BYTES = 64, 512
"""The bytes that an item of a context, and a tool of an MCP server, count as if their sizes are not known."""
DROPPED_SHARE = 8
"""An eighth of the turns is dropped at a time: few attempts with long conversations, few turns lost needlessly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """The parsed body of a request for a response."""

    values: Values
    """The value of every field of the body, by name."""
    generation: GenerationBody
    """The parameters of the generation."""
    tools: AgentTools
    """The tools of the request."""
    offering: Callable[[Any, Any], GenerationBody]
    """Returns the generation with other functions and another tool_choice."""
    tool_bytes: int
    """The size of the request's own tools as JSON."""
    items: list[Json]
    """The input items of the request, in which references to stored items are not resolved yet."""
    response: Callable[..., ResponseObject]
    """Makes the response object; its keyword arguments are those fields that are known only when it starts."""
    audio: AnswerAudio | None
    """How the answer is spoken; None if it is not spoken."""
    headers: list[tuple[str, str]]
    """The Warning headers of the response."""

    async def start(
        self, items: list[Json], services: Services, close: Callable[[list[Json]], list[Json]] = list
    ) -> Generation:
        """Starts the generation. With truncation auto, the oldest turns are left out until the prompt fits.

        Args:
            items: The items of the conversation, those of this request included.
            services: The options and the state of the server.
            close: Adds items at the end of the prompt that are not part of the conversation.

        Returns:
            The running generation.

        Raises:
            RequestError: The prompt is too long or not valid, or the engine refuses it.
        """
        while True:
            try:
                with errors_of_input("input"):
                    return await self.generation.start(
                        await self.prompt(close(items), services), echo=self.values["return_token_ids"]
                    )
            except BadRequest as error:
                shortens = self.values["truncation"] == "auto" and error.code == TOO_LONG
                less = drop_oldest_turns(items) if shortens else items
                if len(less) == len(items):
                    raise
                items = less

    async def prompt(self, items: list[Json], services: Services) -> ChatPrompt:
        """Makes the prompt of a conversation, in the offload thread if it is long or has large tools.

        Raises BadRequest if an item has content that the model cannot read.
        """
        from_servers = len(self.generation.tools) if self.tools.mcp else 0
        cost = ITEM_BYTES * len(items) + self.tool_bytes + TOOL_BYTES * from_servers
        return await services.offload.run(cost, partial(self._prompt, items), inline_below=INLINE_BYTES)

    def _prompt(self, items: list[Json]) -> ChatPrompt:
        """Makes the prompt of a conversation. Raises BadRequest if an item has content that the model cannot read."""
        if (self.values["reasoning"] or {}).get("context") == "current_turn":
            items = _without_older_reasoning(items)
        messages = to_messages(items)
        if self.values["instructions"]:
            messages.insert(0, {"role": "system", "content": self.values["instructions"]})
        with errors_of("input"):
            read_messages(messages, self.generation.services.config.composition)
        kwargs = _template_kwargs(self.values)
        loaded = self.tools.loaded
        tools = [tool for tool in self.generation.tools if tool["function"]["name"] not in loaded]
        return ChatPrompt(
            messages=messages,
            tools=tools,
            template_kwargs=kwargs,
            continue_final_message=bool(items) and _is_begun(items[-1]),
        )


def _is_begun(item: Json) -> bool:
    """Returns whether an item is an answer with some text that is not complete: the model continues it, as in vLLM."""
    if item["type"] != "message" or item["role"] != "assistant" or item["status"] != "incomplete":
        return False
    return any(part.get("text") for part in item["content"])


def _template_kwargs(values: Values) -> Json:
    parsed = {
        "reasoning_effort": (values["reasoning"] or {}).get("effort"),
        "verbosity": (values["text"] or {}).get("verbosity"),
    }
    return template_kwargs({**values, **parsed})


def _without_older_reasoning(items: list[Json]) -> list[Json]:
    """Drops the reasoning items before the last message of the user."""
    last = max((place for place, item in enumerate(items) if role_of(item) == "user"), default=0)
    return [item for item in items[:last] if item["type"] != "reasoning"] + items[last:]


def drop_oldest_turns(items: list[Json]) -> list[Json]:
    """Drops the oldest turns, for truncation auto. Returns the same items if there is only one turn.

    A turn is a user message and all that follows it, so a call is never separated from its output. System and
    developer messages stay.
    """
    starts = [place for place, item in enumerate(items) if role_of(item) == "user"]
    if len(starts) < 2:
        return items
    end = starts[max(1, len(starts) // DROPPED_SHARE)]
    return [item for item in items[:end] if role_of(item) in ("system", "developer")] + items[end:]


async def read_request(
    request: Request, services: Services, parse: Callable[[Json, Services], ResponsesRequest]
) -> tuple[ResponsesRequest, Context]:
    """Parses the body of a request, and loads the stored items that it refers to. Raises RequestError."""
    store = services.get(ResponseService).store  # created here, because a large body is parsed in a thread
    parsed = await services.parse_body(request, parse)
    values = parsed.values
    context = await store.context(values["previous_response_id"], values["conversation"], parsed.items)
    if _finds_tools(parsed.tools, values):
        parsed = await services.offload.run(0, partial(_with_found, parsed, context.history))
    return parsed, context


def _finds_tools(tools: AgentTools, values: Values) -> bool:
    """Returns whether searches for tools may stand in stored turns, so that tool_choice may name what they found.

    A spoken answer has the tools of the request only.
    """
    stored = values["previous_response_id"] or values["conversation"]
    return tools.searches and stored is not None and not values["modalities"]


def _with_found(parsed: ResponsesRequest, history: list[Json]) -> ResponsesRequest:
    """Returns a request with the tools that its client's searches have found in earlier turns. Raises RequestError.

    Reading ten custom tools with grammars takes 0.3 s (2026-11).
    """
    tools = parsed.tools
    load(tools, history)
    if tools.mcp:  # their servers' tools are added later, and all are offered then
        return parsed
    return replace(parsed, generation=parsed.offering(tools.functions, tools.choice))


def parse_response(body: Json, services: Services) -> ResponsesRequest:
    """Reads the body of a request for a response. Raises RequestError."""
    if refused := next(filter(body.get, REFUSED), None):
        raise BadRequest(REFUSED[refused], param=refused)
    reader = BodyReader(ALL_FIELDS, body, services)
    values = reader.values
    _check_together(values)
    read_server, enforced = partial(_read_server_tool, services.config), services.config.wants(ANSWER_RULES)
    given = values["input"] if isinstance(values["input"], list) else ()
    tools = read_agent_tools(values["tools"], values["tool_choice"], read_server, given, enforced=enforced)
    if values["max_output_tokens"] == 0:
        raise BadRequest("max_output_tokens value should be greater than 0", param="max_output_tokens")
    reader.check_max_tokens("max_output_tokens")
    form = (values["text"] or {}).get("format", TEXT_FORMAT)
    include = values["include"] or ()
    listed = "message.output_text.logprobs" in include
    sealer = services.get(ResponseService).sealer
    seal, unsealed = _sealing(sealer) if "reasoning.encrypted_content" in include else (None, [])

    def offering(functions: Any, choice: Any) -> GenerationBody:
        return reader.generation(
            {"max_tokens": values["max_output_tokens"], "text.format": None if form == TEXT_FORMAT else form},
            offer=read_offer(functions, choice, values["parallel_tool_calls"]),
            logprobs=LogprobsRequest(
                chosen=bool(values["logprobs"] or values["top_logprobs"] or listed), top=values["top_logprobs"] or 0
            ),
        )

    generation = offering(tools.functions, None if tools.mcp or _finds_tools(tools, values) else tools.choice)
    generation, audio = read_spoken(values, generation, services)
    _check_combinations(values, tools, generation, audio)
    items, unread = ([], []) if values["input"] is None else sealer.opened(read_input(values["input"]), "input")
    unread += unshown(items, "input")
    echo = _echo(values, tools, generation)
    return ResponsesRequest(
        values=values,
        generation=generation,
        tools=tools,
        tool_bytes=echo["tools"].size,
        offering=offering,
        items=items,
        response=partial(
            ResponseObject,
            model=generation.model.name,
            echo=echo,
            request_id=values["request_id"] or "",
            named_by_id=generation.named_by_id,
            origins=tools.origins,
            seal=seal,
            timed_events=values["timings_per_token"],
        ),
        audio=audio,
        headers=generation.headers + warning_headers([*tools.warnings, *unsealed, *unread]),
    )


def _sealing(sealer: Sealer) -> tuple[Callable[[str], str] | None, list[str]]:
    """Returns the function that encrypts the reasoning of a response, or None and a warning if none is installed."""
    try:
        return sealer.sealing(), []
    except MissingExtra as error:  # agents always ask for it, and the summary contains all reasoning
        return None, [f"reasoning.encrypted_content is not returned: {error.message}"]


def _read_server_tool(config: Config, tool: Json, param: str) -> ServerTool:
    """Reads a tool of type mcp of a request, which this server is asked to run.

    Args:
        config: The options.
        tool: The tool.
        param: The path of the tool in the body, for errors.

    Raises:
        BadRequest: The tool is not valid, or this server runs no tools.
    """
    make = config.composition.part(SERVER_TOOLS)
    if make is None:
        raise BadRequest(f"tools of type {KIND} are not supported by this server", param=f"{param}.type")
    found: ServerTool = make(config).read(tool, param)
    return found


def _echo(values: Values, tools: AgentTools, generation: GenerationBody) -> Json:
    """Returns the members of the response object that repeat the request, in OVMS's order."""
    sampling = generation.sampling
    functions = [tool["function"] for tool in read_tools(tools.functions, None)[0]]
    plain = [function for function in functions if function["name"] not in (tools.origins.keys() | tools.loaded)]
    fields: Json = {
        "parallel_tool_calls": values["parallel_tool_calls"] is not False,
        "store": values["store"],
        "temperature": sampling.temperature,
        "text": _text(values),
        "tool_choice": _tool_choice(values["tool_choice"]),
        "tools": _once([*({"type": "function", "strict": None, "parameters": None, **f} for f in plain), *tools.shown]),
        "top_p": sampling.top_p,
    }
    if values["min_p"] is not None:
        fields["min_p"] = values["min_p"]
    conversation = values["conversation"]
    return fields | {
        "truncation": values["truncation"] or "disabled",
        "metadata": values["metadata"] or {},
        "max_output_tokens": sampling.max_tokens,
        "background": values["background"],
        "conversation": None if conversation is None else {"id": conversation},
        "instructions": values["instructions"],
        "max_tool_calls": values["max_tool_calls"],
        "previous_response_id": values["previous_response_id"],
        "prompt_cache_key": values["prompt_cache_key"],
        "prompt_cache_retention": values["prompt_cache_retention"],
        "reasoning": values["reasoning"] or {"effort": None, "summary": None},
        "safety_identifier": values["safety_identifier"],
        "service_tier": "default",
        "top_logprobs": generation.logprobs.top,
        "user": values["user"],
    }


def _once(tools: list[Json]) -> Written:
    """Serializes tools once for all events that repeat them: 500 KB of tools take 17 ms (2026-11)."""
    found = Written()
    found.extend(chunked_json.dumps(tools))
    return found


def _text(values: Values) -> Json:
    """Returns the member `text` of the response; response_format, the field of other APIs, is its format."""
    text = values["text"] or {"format": TEXT_FORMAT}
    response_format = values["response_format"]
    if response_format is None:
        return text
    inner = response_format.get("json_schema")
    flat = {"type": "json_schema", **inner} if isinstance(inner, dict) and "schema" in inner else response_format
    return {**text, "format": flat}


def _tool_choice(tool_choice: Any) -> str | Json:
    """Converts a validated tool_choice to the form that the response repeats."""
    if isinstance(tool_choice, dict) and isinstance(tool_choice.get("function"), dict):
        return {"type": "function", "name": tool_choice["function"]["name"]}
    return "auto" if tool_choice is None else tool_choice


def _check_combinations(
    values: Values, tools: AgentTools, generation: GenerationBody, audio: AnswerAudio | None
) -> None:
    """Raises BadRequest if MCP tools, several choices, a spoken answer or the background cannot be combined."""
    if tools.mcp and (generation.sampling.n > 1 or values["return_token_ids"]):
        name = "n" if generation.sampling.n > 1 else "return_token_ids"
        raise BadRequest(f"{name} cannot be combined with MCP tools, which need several generations", param=name)
    if audio is not None and (tools.mcp or values["background"]):
        what = "MCP tools" if tools.mcp else "background"
        raise BadRequest(f"a spoken answer cannot be combined with {what}", param="modalities")


def _check_together(values: Values) -> None:
    """Raises BadRequest if the stored turns that a request names, and `store`, do not fit together."""
    if values["input"] is None and not values["previous_response_id"] and not values["conversation"]:
        raise BadRequest("input missing in request", param="input")
    if values["previous_response_id"] and values["conversation"]:
        raise BadRequest("previous_response_id and conversation cannot be used together", param="previous_response_id")
    if not values["store"]:
        for name in ("background", "conversation"):
            if values[name]:
                raise BadRequest(f"{name} requires store to be true", param=name)

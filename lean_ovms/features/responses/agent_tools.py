"""Turns the tools of the Responses API that are not plain functions, namespaces and custom tools, into functions.

A namespace is a group of functions. Each is offered to the model as NAMESPACE__NAME, and the item of a call has
namespace and name apart again, as in vLLM. A custom tool takes free text; it is offered as a function with one string,
`input`. Its grammar is enforced if it can be written as one regular expression; a Lark grammar with recursive rules is
only shown to the model. A client's search for tools is a function, and the tools that it has found may be called, too.
Tools that servers of OpenAI or a shell of the client would run are left out with a warning, if other tools remain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import BadRequest, GrammarInvalid
from ...types import Json
from ..chat.generation import WITHOUT
from .tool_forms import KIND, SEARCH, SEARCH_OUTPUT, SHOWN, ServerTool, ToolOrigin, function_name
from .tool_grammar import ToolGrammars

DROPPED = ("web_search", "web_search_preview", "local_shell", "shell", "apply_patch", "image_generation", SEARCH)
DATED = ("web_search_2", "web_search_preview_2")
"""Types that agents send besides their own functions, and how those with a date begin."""
MAX_NAMESPACE_CHARS = 256
"""The limit of a namespace's name, which is repeated in the name of each of its functions."""


@dataclass(frozen=True, slots=True)
class AgentTools:
    """The tools of a request, as functions for the model and as the client knows them."""

    functions: Any
    """The functions that the model may call."""
    choice: Any
    """The value of tool_choice with the names of these functions."""
    origins: dict[str, ToolOrigin] = field(default_factory=dict)
    """The tools that are not plain functions, by the names of the functions that the model is offered for them."""
    shown: list[Json] = field(default_factory=list)
    """The tools that are not plain functions, in the form in which the response repeats them."""
    warnings: list[str] = field(default_factory=list)
    """The warnings about tools that are left out, for the client."""
    mcp: list[ServerTool] = field(default_factory=list)
    """The MCP servers of the request, whose tools are added to the functions once the servers have listed them."""
    enforced: bool = True
    """Whether the server enforces the grammars of custom tools."""
    loaded: set[str] = field(default_factory=set)
    """The names of those functions that a search has found: its result describes them, and not the prompt's beginning,
    so that the prefix cache keeps the conversation."""
    grammars: ToolGrammars = field(default_factory=ToolGrammars)
    """Converts the grammars of custom tools."""

    @property
    def searches(self) -> bool:
        """Whether one of the tools is a client's search for tools."""
        return any(origin.search for origin in self.origins.values())


def read_agent_tools(
    tools: Any,
    choice: Any,
    read_server: Callable[[Json, str], ServerTool],
    items: Sequence[Any] = (),
    *,
    enforced: bool = True,
) -> AgentTools:
    """Reads the tools of a body. Functions are checked later, with those of other APIs. Raises BadRequest.

    Args:
        tools: The value of the field `tools`.
        choice: The value of the field `tool_choice`.
        read_server: Reads a tool of type mcp; its second argument is the tool's path in the body, for errors.
        items: The items of the field `input`, in which searches may have found further tools.
        enforced: Whether the server enforces the grammars of custom tools.
    """
    if not isinstance(tools, list):
        return AgentTools(tools, choice)
    found = AgentTools([], _flat_choice(choice), enforced=enforced)
    for place, tool in enumerate(tools):
        if isinstance(tool, dict) and tool.get("type") == KIND:
            _add_server(found, read_server(tool, f"tools[{place}]"), tool, f"tools[{place}]")
        else:
            _add(found, tool, f"tools[{place}]")
    if found.warnings and not found.functions and not found.mcp:
        kind = tools[0]["type"][:100]
        raise BadRequest(f"Only function tools are supported, not those of type {kind}", param="tools[0]")
    refuse_clashes(found.functions, found.origins)
    load(found, items)
    return found


def load(found: AgentTools, items: Sequence[Any]) -> None:
    """Adds the tools that searches of the client have found. Raises BadRequest.

    Args:
        found: The tools of a request, of which one may be such a search.
        items: Items of the conversation.
    """
    if not found.searches:
        return
    more = AgentTools([], None, enforced=found.enforced, grammars=found.grammars)
    for place, item in enumerate(items):
        tools = item.get("tools") if isinstance(item, dict) and item.get("type") == SEARCH_OUTPUT else None
        for number, tool in enumerate(tools if isinstance(tools, list) else ()):
            if isinstance(tool, dict) and tool.get("type") in ("function", "custom", "namespace"):
                _add(more, tool, f"input[{place}].tools[{number}]")
    known = {*map(_name_of, found.functions), ""}
    new = {name: function for function in more.functions if (name := _name_of(function)) not in known}
    found.functions.extend(new.values())
    found.loaded.update(new)
    found.origins.update((name, origin) for name, origin in more.origins.items() if name in new)


def refuse_clashes(functions: list[Any], origins: Mapping[str, ToolOrigin]) -> None:
    """Raises BadRequest if a tool that is not a plain function has the name of another one.

    Args:
        functions: All functions that the model is offered.
        origins: The tools that are not plain functions, by the names of their functions.
    """
    seen = set[str]()
    for name in map(_name_of, functions):
        if name in origins and name in seen:
            raise BadRequest(f"two tools have the same name {name[:100]!r}", param="tools")
        seen.add(name)


def _name_of(function: Any) -> str:
    """Returns the name of a function in either of OpenAI's forms, or "" if it is not valid, which is checked later."""
    inner = function.get("function", function) if isinstance(function, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else ""


def _add(found: AgentTools, tool: Any, param: str, namespace: str | None = None) -> None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if namespace is not None and kind == "function" and isinstance(tool.get("name"), str):
        name = function_name(tool["name"], namespace)
        found.origins[name] = ToolOrigin(tool["name"], namespace)
        found.functions.append({**tool, "name": name})
    elif kind == "custom":
        found.functions.append(_custom(found, tool, param, namespace))
        if namespace is None:
            found.shown.append(tool)
    elif kind == SEARCH and tool.get("execution") == "client" and namespace is None:
        found.functions.append(_search(tool))
        found.origins[SEARCH] = ToolOrigin(SEARCH, search=True)
        found.shown.append(tool)
    elif namespace is not None:
        raise BadRequest(f"{param}: a namespace may only contain function and custom tools", param=param)
    elif kind == "namespace":
        _add_namespace(found, tool, param)
    elif isinstance(kind, str) and (kind in DROPPED or kind.startswith(DATED)):
        found.warnings.append(f"{param}: tools of type {kind} are not supported, so this tool was left out")
    else:
        found.functions.append(tool)


def _search(tool: Json) -> Json:
    given = {name: tool[name] for name in ("description", "parameters") if tool.get(name) is not None}
    query = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    usual = {"description": "Searches for further tools, which can be called afterwards.", "parameters": query}
    return {"type": "function", "name": SEARCH, **usual, **given}


def _add_server(found: AgentTools, server: ServerTool, tool: Json, param: str) -> None:
    if any(other.label == server.label or other.server == server.server for other in found.mcp):
        raise BadRequest(f"{param}: another tool has the same server_label, or names the same server", param=param)
    found.mcp.append(server)
    found.shown.append({name: tool[name] for name in SHOWN if name in tool})


def _add_namespace(found: AgentTools, tool: Json, param: str) -> None:
    inner = tool.get("tools")
    if not isinstance(tool.get("name"), str) or not tool["name"] or not isinstance(inner, list):
        raise BadRequest(f"{param}: a namespace must have a name and tools", param=param)
    if len(tool["name"]) > MAX_NAMESPACE_CHARS:
        text = f"{param}: the name of a namespace must have no more than {MAX_NAMESPACE_CHARS} characters"
        raise BadRequest(text, param=f"{param}.name")
    for place, one in enumerate(inner):
        _add(found, one, f"{param}.tools[{place}]", tool["name"])
    found.shown.append(tool)


def _custom(found: AgentTools, tool: Json, param: str, namespace: str | None) -> Json:
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise BadRequest(f"{param}: a custom tool must have a name", param=f"{param}.name")
    name = function_name(tool["name"], namespace)
    found.origins[name] = ToolOrigin(tool["name"], namespace, custom=True)
    described = [tool["description"]] if isinstance(tool.get("description"), str) else []
    text: Json = {"type": "string"}
    form = tool.get("format")
    if isinstance(form, dict) and form.get("type") == "grammar":
        described.append(f"The input follows this {form.get('syntax')} grammar:\n{form.get('definition')}")
        try:
            if not found.enforced:
                raise GrammarInvalid(f"it needs structured output, {WITHOUT}")
            text["pattern"] = found.grammars.pattern(form.get("syntax"), form.get("definition"))
        except GrammarInvalid as error:
            found.warnings.append(f"{param}: the grammar is shown to the model and not enforced: {error}")
    schema = {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}
    function = {"type": "function", "name": name, "description": "\n".join(described), "parameters": schema}
    return {**function, "strict": True} if "pattern" in text else function


def _flat_choice(choice: Any) -> Any:
    """Replaces namespace and name in tool_choice by the name of the function that the model is offered."""
    if not isinstance(choice, dict):
        return choice
    if isinstance(choice.get("tools"), list):
        return {**choice, "tools": [_flat_choice(tool) for tool in choice["tools"]]}
    name, namespace = choice.get("name"), choice.get("namespace")
    if isinstance(name, str) and isinstance(namespace, str):
        return {"type": "function", "name": function_name(name, namespace)}
    return choice

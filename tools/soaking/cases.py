"""The requests of the soak test, and functions that read responses. A unary response and a stream give the same Said.

Every case is greedy, so that its answer is known from the quiet run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

PLACE = {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}}
TAKES = {"type": "object", "properties": PLACE, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city", "parameters": TAKES},
}
TOLD = {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}}
PERSON = {"type": "object", "properties": TOLD, "required": ["name", "age"], "additionalProperties": False}
LONG = "Please repeat: " + " ".join(f"word{i}" for i in range(150))


@dataclass(frozen=True)
class Case:
    """A request of the soak test."""

    name: str
    kind: str
    """One of "chat", "completions", "responses" and "tokenize"."""
    body: dict[str, Any]
    """The body without the fields `model` and `stream`."""

    @property
    def path(self) -> str:
        return {"chat": "/v1/chat/completions", "tokenize": "/v3/tokenize"}.get(self.kind, f"/v3/{self.kind}")

    @property
    def streams(self) -> bool:
        return self.kind != "tokenize"


def _chat(name: str, *said: str, **more: Any) -> Case:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    return Case(name, "chat", {"messages": messages, "temperature": 0, "max_tokens": 80, **more})


def _respond(name: str, said: str, **more: Any) -> Case:
    return Case(name, "responses", {"input": said, "temperature": 0, "max_output_tokens": 80, "store": False, **more})


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", **tool["function"]}


FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}

CASES = (
    _chat("hello", "Hello!"),
    _chat("server", "What can this server do?"),
    _chat("count", "Count from 1 to 20."),
    _chat("turns", "My name is Mira.", "Hello Mira!", "What is my name?"),
    _chat("long prompt", LONG, max_tokens=60),
    _chat("long answer", "Tell me something.", max_tokens=400, ignore_eos=True),
    _chat("stop string", "Count from 1 to 30.", stop=[" 9", "12"], include_stop_str_in_output=False),
    _chat("two answers", "Hello!", n=2),
    _chat("thinking", "What is 3 + 4?", chat_template_kwargs={"enable_thinking": True}),
    _chat("logprobs", "Hello!", logprobs=True),
    _chat("json", "Invent a person.", response_format=FORMAT),
    _chat("any json", "Invent a person, as JSON.", response_format={"type": "json_object"}, max_tokens=60),
    _chat("regex", "A date, please.", structured_outputs={"regex": r"20[0-9]{2}-[01][0-9]-[0-3][0-9]"}),
    _chat("tool", "What is the weather in Paris?", tools=[WEATHER]),
    _chat("tool required", "Hello!", tools=[WEATHER], tool_choice="required"),
    _chat("tool strict", "Weather in Rome in celsius?", tools=[WEATHER], parallel_tool_calls=False),
    Case("text", "completions", {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 60}),
    Case("texts", "completions", {"prompt": ["One", "Two two", "Three"], "temperature": 0, "max_tokens": 30}),
    Case("echo", "completions", {"prompt": "Echo", "echo": True, "temperature": 0, "max_tokens": 20}),
    _respond("response", "Hello!"),
    _respond("response json", "A person.", text={"format": {"type": "json_schema", "name": "p", "schema": PERSON}}),
    _respond("response tool", "What is the weather in Oslo?", tools=[_flat(WEATHER)]),
    _respond("response kept", "Count from 1 to 5.", store=True),
    Case("tokenize", "tokenize", {"text": "Hello, world! " * 20}),
)


@dataclass
class Choice:
    """One choice of an answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    """The name and the arguments of each tool call."""
    finish: str = ""
    """The finish reason, or the status of a response; "" until the choice has ended."""

    def begins(self, whole: Choice) -> bool:
        """Returns whether this choice is the beginning of a complete one, or equal to it."""
        last = len(self.calls) - 1
        return (
            whole.text.startswith(self.text)
            and whole.reasoning.startswith(self.reasoning)
            and len(self.calls) <= len(whole.calls)
            and all(
                mine[0] == its[0] and (its[1].startswith(mine[1]) if i == last else its[1] == mine[1])
                for i, (mine, its) in enumerate(zip(self.calls, whole.calls, strict=False))
            )
            and self.finish in ("", whole.finish)
        )


@dataclass
class Said:
    """What an answer has said so far."""

    choices: dict[int, Choice] = field(default_factory=dict)
    done: bool = False
    """Whether its end was received."""
    error: dict[str, Any] | None = None
    """The error object with which it ended."""

    def choice(self, index: int) -> Choice:
        return self.choices.setdefault(index, Choice())

    def begins(self, whole: Said) -> bool:
        return all(choice.begins(whole.choice(index)) for index, choice in self.choices.items())


def whole(case: Case, body: bytes) -> Said:
    """Reads a unary response."""
    data, said = json.loads(body), Said(done=True)
    if case.kind == "tokenize":
        said.choice(0).text = json.dumps(data["tokens"])
    elif case.kind == "responses":
        _response(said.choice(0), data)
    for choice in data.get("choices", ()):
        mine = said.choice(choice["index"])
        message = choice.get("message", {})
        mine.text = choice.get("text", message.get("content")) or ""
        mine.reasoning = message.get("reasoning_content") or ""
        calls = (call["function"] for call in message.get("tool_calls", ()))
        mine.calls = [[call["name"], call["arguments"]] for call in calls]
        mine.finish = choice["finish_reason"]
    return said


def _response(mine: Choice, data: dict[str, Any]) -> None:
    for item in data["output"]:
        if item["type"] == "message":
            mine.text += "".join(part["text"] for part in item["content"])
        elif item["type"] == "function_call":
            mine.calls.append([item["name"], item["arguments"]])
    mine.finish = data["status"]


def streamed(case: Case, body: bytes) -> Said:
    """Reads the complete events of a stream, up to where it was cut."""
    said = Said()
    for data in _events(body):
        if data == "[DONE]":
            said.done = True
            continue
        event = json.loads(data)
        if "error" in event and "type" not in event:
            said.error = event["error"]
        if case.kind == "responses":
            _response_event(said, event)
        for choice in event.get("choices", ()):
            _chunk(said.choice(choice["index"]), choice)
    return said


def _events(body: bytes) -> Iterator[str]:
    for block in body.split(b"\n\n")[:-1]:
        for line in block.decode().splitlines():
            if line.startswith("data: "):
                yield line.removeprefix("data: ")


def _chunk(mine: Choice, choice: dict[str, Any]) -> None:
    delta = choice.get("delta", {})
    mine.text += choice.get("text") or delta.get("content") or ""
    mine.reasoning += delta.get("reasoning_content") or ""
    for call in delta.get("tool_calls", ()):
        if call["index"] == len(mine.calls):
            mine.calls.append([call["function"]["name"], ""])
        mine.calls[call["index"]][1] += call["function"].get("arguments", "")
    mine.finish = choice["finish_reason"] or mine.finish


def _response_event(said: Said, event: dict[str, Any]) -> None:
    mine, kind = said.choice(0), event["type"]
    if kind == "response.output_text.delta":
        mine.text += event["delta"]
    elif kind == "response.output_item.added" and event["item"]["type"] == "function_call":
        mine.calls.append([event["item"]["name"], ""])
    elif kind == "response.function_call_arguments.delta":
        mine.calls[-1][1] += event["delta"]
    elif kind in ("response.completed", "response.incomplete"):
        mine.finish = event["response"]["status"]
    elif kind == "response.failed":
        said.error = event["response"]["error"]

"""The output items of a response while they grow: messages, reasoning and calls. Each writes its own events.

The order and the fields of the events are those of OVMS and of OpenAI's published schema. An item knows nothing of
other items, choices and the response; it adds numbered frames to a ResponseEventWriter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import orjson

from ...api.fields import parsed_object
from ...api.sse import padding
from ...api.stored_objects import item_id
from ...types import Json, TokenLogprob
from ...util import chunked_json
from ...util.chunked_json import Written
from ..chat.logprobs import logprob_entry
from .tool_forms import APPROVAL_REQUEST, CALL, SEARCH_CALL, ToolOrigin

UNKNOWN_LOGPROB = -9999.0
"""OpenAI's value for a token whose log probability is not known; its schema has no null there."""


Frame = bytes | list[bytes]
"""An event; a large one in pieces, most of which other events share."""


class ResponseEventWriter:
    """Writes the events of one stream as SSE frames; the frames are numbered from 0 by sequence_number."""

    def __init__(self, *, obfuscate: bool = False, silent: bool = False) -> None:
        """Begins without any event.

        With `obfuscate` (stream_options), deltas are padded, so that their length reveals less about their tokens. With
        `silent`, frames are only counted, since nobody reads them.
        """
        self.count = 0
        self._obfuscate = obfuscate
        self._silent = silent
        self._new: list[Frame] = []

    def add(self, kind: str, payload: Json) -> None:
        """Adds an event of the given type."""
        self.count += 1
        if self._silent:
            return
        first, *rest = chunked_json.pieces({"type": kind, "sequence_number": self.count - 1, **payload})
        pieces = [b"event: %b\ndata: %b" % (kind.encode(), first), *rest]
        pieces[-1] += b"\n\n"
        self._new.append(pieces if len(pieces) > 1 else pieces[0])

    def delta(self, head: bytes, tail: bytes, text: str, rest: bytes = b"}") -> None:
        """Adds a delta event. It is called for each token, so it only joins bytes that were prepared before.

        Args:
            head: The bytes of the event before its sequence number.
            tail: The bytes between the sequence number and the text.
            text: The new text.
            rest: The bytes after the text, up to the end of the JSON object.
        """
        self.count += 1
        if self._silent:
            return
        if self._obfuscate:
            rest = b',"obfuscation":"%b"%b' % (padding(len(text)), rest)
        self._new.append(b"%b%d%b%b%b\n\n" % (head, self.count - 1, tail, orjson.dumps(text), rest))

    def take_frames(self) -> list[Frame]:
        """Returns the frames that were added since the last call."""
        new, self._new = self._new, []
        return new


def pieces_of(frames: Iterable[Frame]) -> list[bytes]:
    """Returns the bytes of frames in pieces: a small frame is one piece, a large one has several."""
    return [piece for frame in frames for piece in ([frame] if isinstance(frame, bytes) else frame)]


def joined(frames: Iterable[Frame]) -> list[bytes]:
    """Returns the bytes of frames in pieces: consecutive small frames are one piece, a large one has several."""
    found: list[bytes] = []
    for small, alike in groupby(frames, lambda frame: isinstance(frame, bytes)):
        pieces = pieces_of(alike)
        found += [b"".join(pieces)] if small else pieces
    return found


def delta_head(kind: str) -> bytes:
    """Returns the bytes of a delta event before its sequence number."""
    return b'event: %b\ndata: {"type":"%b","sequence_number":' % (kind.encode(), kind.encode())


def entry(token: TokenLogprob, *, by_id: bool) -> Json:
    """Returns a token with its log probability and alternatives; an unknown probability is a number, not null."""
    found = logprob_entry(token, by_id=by_id)
    if found["logprob"] is None:
        found["logprob"] = UNKNOWN_LOGPROB
    return found


class OutputItem:
    """An output item with its text so far. Its first event is written when it is created, its last ones by `close`."""

    prefix = ""
    head = b""

    def __init__(self, writer: ResponseEventWriter, index: int, where: Json) -> None:
        self.id = item_id(self.prefix)
        self._writer = writer
        self.index = index
        self._texts: list[str] = []
        self._where: Json = {"item_id": self.id, "output_index": index, **where}
        self._tail = b"," + orjson.dumps(self._where)[1:-1] + b',"delta":'
        writer.add("response.output_item.added", {"output_index": index, "item": self._announced()})

    @property
    def text(self) -> str:
        """The text of the item so far."""
        return "".join(self._texts)

    def add(self, text: str) -> None:
        """Adds text to the item, and writes its delta event."""
        self._texts.append(text)
        self._writer.delta(self.head, self._tail, text)

    def close(self, status: str) -> Json:
        """Writes the closing events, and returns the final item."""
        item = self.item(status)
        self._end(item)
        self._writer.add("response.output_item.done", {"output_index": self.index, "item": item})
        return item

    def item(self, status: str) -> Json:
        """Returns the item with its content so far."""
        raise NotImplementedError

    def _announced(self) -> Json:
        return self.item("in_progress")

    def _end(self, item: Json) -> None:
        """Writes the events with the complete content of the item, before the one that ends it."""
        raise NotImplementedError


class MessageItem(OutputItem):
    """An assistant message with one text part."""

    prefix = "msg"
    head = delta_head("response.output_text.delta")

    def __init__(self, writer: ResponseEventWriter, index: int, *, named_by_id: bool = False) -> None:
        self._named_by_id = named_by_id
        self._logprobs = Written()
        super().__init__(writer, index, {"content_index": 0})
        writer.add("response.content_part.added", {**self._where, "part": self._part()})

    def add(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """Adds text, with the log probabilities of its tokens if they are requested, and writes the delta event."""
        self._texts.append(text)
        if not logprobs:
            self._writer.delta(self.head, self._tail, text, b',"logprobs":[]}')
            return
        entries = orjson.dumps([entry(token, by_id=self._named_by_id) for token in logprobs])
        self._logprobs.extend(entries)
        self._writer.delta(self.head, self._tail, text, b',"logprobs":%b}' % entries)

    def item(self, status: str) -> Json:
        return self._announced() | {"status": status, "content": [self._part()]}

    def _announced(self) -> Json:
        return {"id": self.id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}

    def _part(self) -> Json:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self._logprobs}

    def _end(self, item: Json) -> None:
        [part] = item["content"]
        done = {**self._where, "text": part["text"], "logprobs": part["logprobs"]}
        self._writer.add("response.output_text.done", done)
        self._writer.add("response.content_part.done", {**self._where, "part": part})


class ReasoningItem(OutputItem):
    """A reasoning item, whose one summary part is the model's reasoning."""

    prefix = "rs"
    head = delta_head("response.reasoning_summary_text.delta")

    def __init__(self, writer: ResponseEventWriter, index: int, seal: Callable[[str], str] | None = None) -> None:
        """Begins the item.

        Args:
            writer: Writes the events.
            index: The index of the item in the output.
            seal: Encrypts the reasoning for the client; None if no encrypted reasoning is sent.
        """
        self._seal = seal
        super().__init__(writer, index, {"summary_index": 0})
        writer.add("response.reasoning_summary_part.added", {**self._where, "part": self._part()})

    def item(self, status: str) -> Json:
        item = self._announced() | {"status": status, "summary": [self._part()]}
        if self._seal is not None and status != "in_progress":
            item["encrypted_content"] = self._seal(self.text)
        return item

    def _announced(self) -> Json:
        return {"id": self.id, "type": "reasoning", "status": "in_progress", "summary": []}

    def _part(self) -> Json:
        return {"type": "summary_text", "text": self.text}

    def _end(self, item: Json) -> None:
        [part] = item["summary"]
        self._writer.add("response.reasoning_summary_text.done", {**self._where, "text": part["text"]})
        self._writer.add("response.reasoning_summary_part.done", {**self._where, "part": part})


class FunctionCall(OutputItem):
    """An item with a call of one of the client's functions."""

    prefix = "fc"
    kind = "function_call"
    content = "arguments"
    head = delta_head("response.function_call_arguments.delta")
    """The beginning of a delta's event; empty if the arguments come without deltas."""

    def __init__(self, writer: ResponseEventWriter, index: int, call_id: str, origin: ToolOrigin) -> None:
        self.complete = False
        """Whether its arguments are a whole JSON object."""
        self._call_id = call_id
        self.origin = origin
        self._json = JsonDepth()
        super().__init__(writer, index, {"call_id": call_id} if self.kind == FunctionCall.kind else {})

    def add(self, text: str) -> None:
        self._texts.append(text)
        if self.head:
            self._writer.delta(self.head, self._tail, text)
        self.complete = self._json.feed(text)

    def item(self, status: str) -> Json:
        item = {"id": self.id, "type": self.kind, "status": status, "call_id": self._call_id, "name": self.origin.name}
        space = {} if self.origin.namespace is None else {"namespace": self.origin.namespace}
        return {**item, **space, self.content: self._content()}

    def _content(self) -> str:
        return self.text

    def _end(self, item: Json) -> None:
        done = {**self._where, "name": self.origin.name, "arguments": item["arguments"]}
        self._writer.add("response.function_call_arguments.done", done)


class CustomCall(FunctionCall):
    """An item with a call of a custom tool.

    The model writes the arguments of a function, and the client gets their text.

    The input is sent as one delta, since the text is known only when the JSON of the arguments is complete.
    """

    prefix = "ctc"
    kind = "custom_tool_call"
    content = "input"
    head = b""

    def _content(self) -> str:
        """Returns the text in the arguments {"input": text}, or "" if they are cut off or of another form."""
        text = (parsed_object(self.text) or {}).get("input")
        return text if isinstance(text, str) else ""

    def _end(self, item: Json) -> None:
        where = {"item_id": self.id, "output_index": self.index}
        self._writer.add("response.custom_tool_call_input.delta", {**where, "delta": item["input"]})
        self._writer.add("response.custom_tool_call_input.done", {**where, "input": item["input"]})


class SearchCall(FunctionCall):
    """An item with a call of the client's search for tools, whose arguments are an object. It has no deltas."""

    prefix = "tsc"
    kind = SEARCH_CALL
    head = b""

    def item(self, status: str) -> Json:
        item = {"id": self.id, "type": self.kind, "status": status, "call_id": self._call_id, "execution": "client"}
        return {**item, "arguments": parsed_object(self.text) or {}}

    def _end(self, item: Json) -> None:
        """Writes no event, since the API has none for the content of this item."""


class JsonDepth:
    """Finds the end of a JSON object that arrives in pieces. A value that is not an object never ends."""

    _MARKS = re.compile(r'["{}\[\]]')
    _IN_STRING = re.compile(r'"|\\.', re.DOTALL)

    def __init__(self) -> None:
        self._depth = 0
        self._object: bool | None = None
        self._quoted = False
        self._escape = ""

    def feed(self, text: str) -> bool:
        """Adds a piece, and returns whether the object is complete."""
        if self._object is None:
            text = text.lstrip()
            if not text:
                return False
            self._object = text[0] == "{"
        text = self._escape + text
        at = 0
        while found := (self._IN_STRING if self._quoted else self._MARKS).search(text, at):
            at, mark = found.end(), found[0]
            if mark == '"':
                self._quoted = not self._quoted
            else:
                self._depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(mark, 0)
        self._escape = "\\" if self._quoted and text.endswith("\\", at) else ""
        return self._object and self._depth == 0


def called(origin: ToolOrigin, arguments: str) -> Json:
    """Returns the members of an item that describe a call: server, tool and arguments."""
    return {"server_label": origin.namespace, "name": origin.name, "arguments": arguments}


class McpCall(FunctionCall):
    """An item of a call of an MCP server's tool, which is closed when it has its result."""

    prefix = "mcp"
    kind = CALL
    head = delta_head("response.mcp_call_arguments.delta")

    def __init__(
        self, writer: ResponseEventWriter, index: int, call_id: str, origin: ToolOrigin, approval: str | None = None
    ) -> None:
        """Begins the item of a call.

        Args:
            writer: Writes the events.
            index: The index of the item in the output.
            call_id: The id of the call.
            origin: The server and the tool.
            approval: The id of the request for approval that was granted; None if the call needs no approval.
        """
        self.output: str | None = None
        self.error: Json | None = None
        self._approval = approval
        super().__init__(writer, index, call_id, origin)
        self._writer.add("response.mcp_call.in_progress", self._where)

    def item(self, status: str) -> Json:
        result = {"approval_request_id": self._approval, "output": self.output, "error": self.error}
        return {"id": self.id, "type": self.kind, "status": status, **called(self.origin, self.text), **result}

    def end_arguments(self) -> None:
        """Writes the event with the complete arguments."""
        self._writer.add("response.mcp_call_arguments.done", {**self._where, "arguments": self.text})

    def _end(self, item: Json) -> None:
        word = "completed" if item["status"] == "completed" else "failed"
        self._writer.add(f"response.mcp_call.{word}", self._where)


class ApprovalRequest(FunctionCall):
    """An item that asks the client to approve a call. It has no deltas."""

    prefix = "mcpr"
    kind = APPROVAL_REQUEST
    head = b""

    def item(self, status: str) -> Json:
        return {"id": self.id, "type": self.kind, **called(self.origin, self.text)}

    def _end(self, item: Json) -> None:
        """Writes no event, since the API has none for the content of this item."""

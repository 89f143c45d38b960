"""The conversion of Anthropic's messages to those of chat, for every kind of block."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.features.anthropic.api.conversation import is_prefill, to_messages
from tests.api.conftest import MakeApp, post
from tests.fakes import say

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}, "cache_control": {"type": "ephemeral"}}
CALL = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


def called(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": orjson.loads(arguments)}}


def result(content: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t1", **({} if content is None else {"content": content}), **more}


def says(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """Returns a message of chat."""
    return {"role": role, "content": content, **more}


def told(content: str, call_id: str = "t1") -> dict[str, Any]:
    """Returns the result of a call in chat."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


HI, CALLS = says("user", "hi"), says("assistant", "", tool_calls=[CALL])
BILLING = "x-anthropic-billing-header: cc_version=2; cch=1;"
SEARCHED = {"type": "web_search_result", "url": "u", "title": "T", "encrypted_content": "zz"}
SERVED = [
    text("b"),
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
    {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [SEARCHED]},
    text("c"),
    {"type": "mcp_tool_use", "id": "s2", "name": "f", "server_name": "srv", "input": {}},
    {"type": "mcp_tool_result", "tool_use_id": "s2", "is_error": True, "content": [text("no"), text("way")]},
]
DOCUMENTS = [
    {"type": "document", "title": "T", "source": {"type": "text", "data": "D", "media_type": "text/plain"}},
    {"type": "document", "source": {"type": "content", "content": [text("E"), IMAGE]}},
    {"type": "search_result", "title": "S", "source": "https://x", "content": [text("F")]},
    {"type": "tool_reference", "tool_name": "f"},
]
LINK = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
CASES: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("a text", None, [HI], [HI]),
    ("text blocks", None, [user(text("a"), text("b"))], [says("user", [text("a"), text("b")])]),
    ("turns of one role", None,
     [user(text("a")), says("user", "b"), assistant(text("c")), assistant(text("d"))],
     [says("user", [text("a"), text("b")]), says("assistant", "c\nd")]),
    ("system", [text(BILLING), {**text("one"), "cache_control": {}}, text("two")], [HI],
     [says("system", "one\ntwo"), HI]),
    ("system among the messages", f"{BILLING}\none",
     [says("system", "two"), user(text("hi")), says("system", [text("three")])],
     [says("system", "one\ntwo"), HI, says("system", "three")]),
    ("images", None, [user(text("a"), IMAGE)], [says("user", [text("a"), IMAGE_PART])]),
    ("an image by address", None, [user(LINK)],
     [says("user", [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}])]),
    ("a call and its result", None,
     [assistant({"type": "thinking", "thinking": "hm", "signature": "s"}, text("look"), USE), user(result("42"))],
     [says("assistant", "look", reasoning_content="hm", tool_calls=[CALL]), told("42")]),
    ("a result with an image, and words after it", None,
     [assistant(USE), user(result([text("a"), IMAGE]), text("and?"))],
     [CALLS, told("a"), says("user", [{**IMAGE_PART, "of_tool": True}, text("and?")])]),
    ("results that failed or are empty", None,
     [assistant(USE), user(result("no such file", is_error=True), result("Error: x", is_error=True), result())],
     [CALLS, told("Error: no such file"), told("Error: x"), told("")]),
    ("what cannot be read", None,
     [user(text("a")), assistant({"type": "redacted_thinking", "data": "x"}, text("b"))],
     [says("user", "a"), says("assistant", "b")]),
    ("tools that Anthropic has run", None, [user(text("a")), assistant(*SERVED), user(text("d"))],
     [says("user", "a"), says("assistant", "b", tool_calls=[called("s1", "web_search", '{"query":"q"}')]),
      told('[{"type":"web_search_result","url":"u","title":"T"}]', "s1"),
      says("assistant", "c", tool_calls=[called("s2", "srv__f", "{}")]), told("Error: no\nway", "s2"),
      says("user", "d")]),
    ("a summary by Anthropic", "S",
     [user(text("a")), assistant(text("b"), {"type": "compaction", "content": "so far"}, text("c")), user(text("d"))],
     [says("system", "S"), says("user", "Summary of the conversation so far:\nso far"), says("assistant", "c"),
      says("user", "d")]),
    ("documents and search results", None, [user(*DOCUMENTS)],
     [says("user", [text("T"), text("D"), text("E"), IMAGE_PART, text("S\nhttps://x\nF"), text("f")])]),
]  # fmt: skip


@pytest.mark.parametrize(("system", "given", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_blocks_become_messages(system: Any, given: list[Any], expected: list[Any]) -> None:
    assert to_messages(system, given) == (expected, [])


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "type must be base64 or url"),
        ({"type": "document", "source": {"type": "file", "file_id": "x"}}, "a document must be a text"),
        ({"type": "video"}, "blocks of type 'video' are not supported"),
    ],
)
def test_a_text_stands_for_what_a_tool_returned_and_nothing_reads(block: Any, why: str) -> None:
    [message], _ = to_messages(None, [user(result([text("a"), block]))])
    assert message["content"].startswith(f"a\n[The tool returned content of type {block['type']}, which was left out")
    assert why in message["content"]


def test_what_the_model_cannot_be_shown_is_left_out_with_a_warning() -> None:
    upload = {"type": "container_upload", "file_id": "f"}
    messages, [warning] = to_messages(None, [user(upload, text("a"))])
    assert messages == [{"role": "user", "content": "a"}]
    assert warning.startswith("messages.0.content.0 (container_upload) were left out")


def test_an_assistants_text_at_the_end_is_continued() -> None:
    assert is_prefill(to_messages(None, [user(text("a")), assistant(text("The answer is"))])[0])
    assert not is_prefill(to_messages(None, [user(text("a")), assistant()])[0])
    assert not is_prefill(to_messages(None, [user(text("a")), assistant(text("b"), USE)])[0])


WRONG = [
    ([], "messages: at least one message is required"),
    ([user(), assistant()], "messages: at least one message of a user or an assistant must have content"),
    (
        [{"role": "system", "content": "a"}],
        "messages: at least one message of a user or an assistant must have content",
    ),
    ([1], "messages.0: each message must be an object"),
    ([{"role": "tool", "content": "x"}], "messages.0.role must be one of: user, assistant, system"),
    ([{"role": "user"}], "messages.0.content must be a string or an array"),
    ([user("hi")], "messages.0.content.0: each block must be an object with a type"),
    ([user(text("a"), {"type": "text"})], "messages.0.content.1.text: Field required"),
    ([user({"type": "video"})], "messages.0.content.0.type: blocks of type 'video' are not supported"),
    ([user(USE)], "messages.0.content.0.type: blocks of type 'tool_use'"),
    ([assistant(IMAGE)], "messages.0.content.0.type: blocks of type 'image'"),
    ([user({"type": "server_tool_use", "id": "x"})], "blocks of type 'server_tool_use' are not supported"),
    ([assistant({"type": "server_tool_use", "id": "x"})], "messages.0.content.0.name: Field required"),
    ([assistant({"type": "web_search_tool_result"})], "messages.0.content.0.tool_use_id: Field required"),
    ([assistant({"type": "compaction", "content": 1})], "messages.0.content.0.content must be a string"),
    *(
        ([assistant({**USE, "input": given})], "messages.0.content.0.input must be an object")
        for given in ("x", "", 0, [])
    ),
    ([assistant({**USE, "id": ""})], "messages.0.content.0.id: Field required"),
    ([user({"type": "tool_result"})], "messages.0.content.0.tool_use_id: Field required"),
    ([user(result(1))], "messages.0.content.0.content must be"),
    ([user({"type": "image", "source": {"type": "file", "file_id": "f"}})], "messages.0.content.0.source"),
    ([user({"type": "image", "source": {"type": "base64", "data": "A"}})], "source.media_type: Field required"),
    ([user({"type": "document", "source": {"type": "base64", "data": "A"}})], "a document must be a text, a PDF"),
    ([user({"type": "document", "source": {"type": "text", "data": 1}})], "a document must be a text, a PDF"),
    ([user({"type": "search_result"})], "messages.0.content.0.content: Field required"),
    ([{"role": "system", "content": [IMAGE]}], "messages.0.content.0.type"),
]


def test_wrong_blocks_are_named() -> None:
    for given, message in WRONG:
        with pytest.raises(BadRequest) as caught:
            to_messages(None, given)
        assert message in caught.value.message
        assert caught.value.param


# --- what Claude Code sends to other endpoints, through proxies that translate


HEADER = "x-anthropic-billing-header: cc_version=2.1; cch=7adab;"


@pytest.mark.parametrize(
    ("without", "role", "content", "seen"),
    [
        ("", "system", f"{HEADER}\nYou are an agent.", "You are an agent."),
        ("", "system", [text(HEADER), text("You are an agent.")], "You are an agent."),
        ("", "system", f"Quote: {HEADER}", f"Quote: {HEADER}"),
        ("", "user", HEADER, HEADER),
        ("anthropic", "system", HEADER, HEADER),
    ],
)
async def test_a_line_that_changes_with_each_request_of_an_agent_is_left_out(
    make_app: MakeApp, without: str, role: str, content: Any, seen: str
) -> None:
    app, engine = await make_app(say("x"), without=without)
    messages = [{"role": role, "content": content}, {"role": "user", "content": "hi"}]
    assert (await post(app, "/v1/chat/completions", {"messages": messages})).status == 200
    assert engine.submitted[0][0] == f"{role}:{seen};user:hi;"


async def test_a_call_is_rendered_alike_in_every_api(make_app: MakeApp) -> None:
    """Whether a template reads arguments as an object or as a text: as models write JSON, with blanks."""
    talk = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }}"
    arguments = "c.function.arguments"
    read = (arguments, f"{arguments} + ''", f"{arguments} | tojson", f"dict({arguments}.items()) | tojson")
    hi, given = {"role": "user", "content": "hi"}, {"a": 1, "b": ["é"]}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": given}}
    used = {"type": "tool_use", "id": "c", "name": "f", "input": given}
    text = '{"a": 1, "b": ["é"]}'
    of_chat = call | {"function": {"name": "f", "arguments": text}}
    asked: list[tuple[str, Any]] = [
        ("/v1/messages", {"messages": [hi, {"role": "assistant", "content": [used]}], "max_tokens": 5}),
        ("/api/chat", {"messages": [hi, {"role": "assistant", "tool_calls": [call]}]}),
        ("/v1/chat/completions", {"messages": [hi, {"role": "assistant", "tool_calls": [of_chat]}]}),
        ("/v1/responses", {"input": [hi, {"type": "function_call", "call_id": "c", "name": "f", "arguments": text}]}),
    ]
    for one in read:
        template = f"{talk}{{{{ {one} }}}}>{{% endfor %}};{{% endfor %}}"
        app, engine = await make_app(lambda *_: say("x"), chat_template=template)
        for path, body in asked:
            assert (await post(app, path, {"model": "m", **body})).status == 200, (path, one)
        assert {prompt for prompt, _ in engine.submitted} == {f"user:hi;assistant:<f{text}>;"}, one

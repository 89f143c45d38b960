"""Files in messages: through each API, the model gets their text."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.features.media_files.images.fetch import HttpFetcher
from lean_ovms.features.media_files.images.source import Url
from lean_ovms.features.pdf import reader_process
from lean_ovms.features.pdf.reader import KEPT, PdfReaders
from lean_ovms.types import Json
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import INFO, say
from tests.features.pdf.test_pdf import pdf
from tests.forms import form_request

CHAT = "/v1/chat/completions"
DATA = b64encode(pdf("Hello there.", "Bye.")).decode()
URL = f"data:application/pdf;base64,{DATA}"
TEXT = "Hello there.\n\nBye."
CSV = b64encode("\ufeffä,b".encode()).decode()


@pytest.fixture(autouse=True)
def files_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Reads files in this process, because starting another takes longer than these tests. Returns the sizes of the
    files."""
    sizes: list[int] = []

    async def read_here(readers: PdfReaders, data: memoryview) -> Json:
        sizes.append(len(data))
        found = reader_process.read(bytes(data))
        if "error" in found:
            raise BadRequest(found["error"], param="file")
        return found

    monkeypatch.setattr(PdfReaders, "read", read_here)
    return sizes


def chat(file: Any) -> Json:
    return {"messages": [{"role": "user", "content": [{"type": "file", "file": file}, {"type": "text", "text": "?"}]}]}


def document(source: Any) -> Json:
    """Returns what Claude Code sends after its tool Read has opened a file."""
    call = {"type": "tool_use", "id": "c", "name": "Read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "PDF file read"}
    blocks = [result, {"type": "document", "source": source}, {"type": "text", "text": "?"}]
    talk = [("user", "look"), ("assistant", [call]), ("user", blocks)]
    return {"max_tokens": 9, "messages": [{"role": role, "content": content} for role, content in talk]}


def responses(**file: Any) -> Json:
    parts = [{"type": "input_file", **file}, {"type": "input_text", "text": "?"}]
    return {"input": [{"role": "user", "content": parts}]}


SENT = [
    (CHAT, chat({"file_data": URL, "filename": "a.pdf"}), f"a.pdf\n\n{TEXT}"),
    (CHAT, chat({"file_data": DATA}), TEXT),
    ("/v1/responses", responses(filename="a.pdf", file_data=URL), f"a.pdf\n\n{TEXT}"),
    ("/v1/messages", document({"type": "base64", "media_type": "application/pdf", "data": DATA}), TEXT),
    (CHAT, chat({"file_data": f"data:text/csv;base64,{CSV}", "filename": "a.csv"}), "a.csv\n\nä,b"),
    (CHAT, chat({"file_data": CSV}), "ä,b"),
    ("/v1/responses", responses(filename="a.csv", file_data=CSV), "a.csv\n\nä,b"),
]


@pytest.mark.parametrize(("path", "body", "text"), SENT)
async def test_the_model_gets_the_text(make_app: MakeApp, path: str, body: Json, text: str) -> None:
    app, engine = await make_app(say("fine"))
    response = await post(app, path, {"model": "m", **body})
    assert response.status == 200
    [(prompt, _)] = engine.submitted
    assert prompt.endswith(f"user:{text}\n?;")


async def test_a_file_that_is_sent_again_is_not_read_again(make_app: MakeApp, files_read: list[int]) -> None:
    app, _ = await make_app(lambda *_: say("fine"))
    for _ in range(3):
        await post(app, CHAT, {"model": "m", **chat({"file_data": URL})})
    assert len(files_read) == 1
    for number in range(KEPT):
        other = b64encode(pdf(f"File {number}")).decode()
        await post(app, CHAT, {"model": "m", **chat({"file_data": other})})
    await post(app, CHAT, {"model": "m", **chat({"file_data": URL})})
    assert len(files_read) == KEPT + 2


async def test_a_text_is_kept_for_requests_with_the_same_salt_and_scope(
    make_app: MakeApp, files_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the time that an answer takes would tell what others have sent."""
    scope = ""
    monkeypatch.setattr("lean_ovms.api.keys.ApiKey.cache_scope", property(lambda key: scope))
    app, engine = await make_app(lambda *_: say("fine"), api_key="k")
    engine.info = replace(INFO, capabilities=["cache_salt"])

    async def read(**fields: str) -> int:
        """Returns how often the file was read for this request."""
        before = len(files_read)
        body = {"model": "m", **chat({"file_data": URL}), **fields}
        assert (await post(app, CHAT, body, authorization="Bearer k")).status == 200
        return len(files_read) - before

    assert [await read(), await read(), await read(cache_salt="a"), await read(cache_salt="a")] == [1, 0, 1, 0]
    scope = "key:other"
    assert [await read(), await read(), await read(cache_salt="a")] == [1, 0, 1]


async def test_without_the_prefix_cache_no_text_is_kept(make_app: MakeApp, files_read: list[int]) -> None:
    app, _ = await make_app(lambda *_: say("fine"), enable_prefix_caching=False)
    for _ in range(2):
        await post(app, CHAT, {"model": "m", **chat({"file_data": URL})})
    assert len(files_read) == 2


AWAY = {"type": "url", "url": "https://x/y.pdf"}
WRONG = [
    (CHAT, chat({"file_id": 1}), "file does not have file_data field", "messages[0].content[0].file"),
    (CHAT, chat({"file_data": "@@"}), "not a file in base64", "messages[0].content[0]"),
    (CHAT, chat({"file_data": "data:application/pdf;base64,aGVsbG8="}), "Invalid PDF file", "messages[0].content[0]"),
    (CHAT, chat({"file_data": b64encode(b"%PDF-1.4 x").decode()}), "Invalid PDF file", "messages[0].content[0]"),
    (CHAT, chat({"file_data": "/w=="}), "neither a PDF file nor a text in UTF-8", "messages[0].content[0]"),
    (CHAT, chat({"file_data": "AA=="}), "neither a PDF file nor a text in UTF-8", "messages[0].content[0]"),
    (CHAT, chat({"file_data": b64encode(b"a" * 1_048_577).decode()}), "more than 1048576 characters", "messages[0]"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": DATA}}] * 33}]},
        "33 files exceed this server's limit of 32",
        "messages[0].content[32]",
    ),
    ("/v1/responses", responses(file_url="https://x/y.pdf"), "does not match any allowed domain", "input"),
    ("/v1/responses", responses(file_url="file:///etc/passwd"), "the URL of a file must be", "input"),
    ("/v1/messages", document({"type": "base64", "media_type": "application/pdf"}), "source.data: Field required", ""),
    (
        "/v1/messages",
        {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "document", "source": AWAY}]}]},
        "does not match any allowed domain",
        "",
    ),
    ("/v1/messages", document({"type": "file", "file_id": "f"}), "a PDF in base64, or a URL", ""),
]


async def test_the_text_of_a_file_stands_for_no_image(make_app: MakeApp) -> None:
    app, engine = await make_app(say("fine"))
    engine.info = replace(INFO, vision=True, image_tokens=["<image>"])
    data = b64encode(pdf("An <image> here")).decode()
    assert (await post(app, CHAT, {"model": "m", **chat({"file_data": data})})).status == 200
    assert "An <\u200bimage> here" in engine.submitted[0][0]


async def test_an_agent_goes_on_where_a_tool_returned_a_file_in_an_unknown_form(make_app: MakeApp) -> None:
    app, engine = await make_app(say("fine"))
    tool = {"role": "tool", "tool_call_id": "c", "content": [{"type": "file", "file": {"url": "f"}}]}
    assert (
        await post(app, CHAT, {"model": "m", "messages": [{"role": "user", "content": "look"}, tool]})
    ).status == 200
    assert "which was left out: Invalid message structure - file does not have file_data" in engine.submitted[0][0]


async def test_an_agent_goes_on_where_it_opened_a_broken_file(make_app: MakeApp) -> None:
    app, engine = await make_app(say("fine"))
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQgeA=="}
    response = await post(app, "/v1/messages", {"model": "m", **document(source)})
    assert response.status == 200
    assert "was left out: Invalid PDF file" in dict(response.headers)["Warning"]
    assert "which was left out: Invalid PDF file" in engine.submitted[0][0]


@pytest.mark.parametrize(("path", "body", "words", "param"), WRONG)
async def test_what_cannot_be_read_is_refused(make_app: MakeApp, path: str, body: Json, words: str, param: str) -> None:
    app, engine = await make_app(say("fine"))
    response = await post(app, path, {"model": "m", **body})
    assert response.status == 400
    error = (await whole(response))["error"]
    assert words in error["message"]
    assert error.get("param", "").startswith(param)
    assert engine.submitted == []


async def test_without_its_library_the_answer_says_what_to_install(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    app, _ = await make_app(say("fine"))
    response = await post(app, CHAT, {"model": "m", **chat({"file_data": URL})})
    assert response.status == 501
    assert "pypdf" in (await whole(response))["error"]["message"]


BY_ID = [(CHAT, lambda name: chat({"file_id": name})), ("/v1/responses", lambda name: responses(file_id=name))]


@pytest.mark.parametrize(("path", "body"), BY_ID)
async def test_a_file_may_be_named_by_its_id(make_app: MakeApp, tmp_path: Path, path: str, body: Any) -> None:
    app, engine = await make_app(lambda *_: say("fine"), files_path=str(tmp_path))
    await app.open()
    for data, name, text in ((b64decode(DATA), "a.pdf", TEXT), (b64decode(CSV), "a.csv", "ä,b")):
        made = await app.handle(form_request("/v1/files", [("purpose", "user_data"), ("file", (name, data))]))
        response = await post(app, path, {"model": "m", **body((await whole(made))["id"])})
        assert response.status == 200, response.body
        assert engine.submitted[-1][0].endswith(f"user:{name}\n\n{text}\n?;")
    missing = await post(app, path, {"model": "m", **body("file-x")})
    assert missing.status == 400
    assert (await whole(missing))["error"]["message"] == "No file with id 'file-x'."
    await app.close()


async def test_a_file_by_its_id_needs_stored_files(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("fine"))
    response = await post(app, CHAT, {"model": "m", **chat({"file_id": "f"})})
    assert response.status == 400
    assert "--files_path" in (await whole(response))["error"]["message"]
    app, _ = await make_app(lambda *_: say("fine"), without="batches")
    response = await post(app, CHAT, {"model": "m", **chat({"file_id": "f"})})
    assert response.status == 400
    assert "send the file in file_data" in (await whole(response))["error"]["message"]


BY_URL = [
    (CHAT, chat({"file_url": "https://x.org/a.pdf", "filename": "a.pdf"}), f"a.pdf\n\n{TEXT}"),
    ("/v1/responses", responses(file_url="https://x.org/a.pdf"), TEXT),
    ("/v1/messages", document({"type": "url", "url": "https://x.org/a.pdf"}), TEXT),
]


@pytest.mark.parametrize(("path", "body", "text"), BY_URL)
async def test_a_file_may_be_on_a_web_server(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, path: str, body: Json, text: str
) -> None:
    async def fetched(fetcher: HttpFetcher, url: Url) -> bytes:
        assert (url.secure, url.host, url.target) == (True, "x.org", "/a.pdf")
        return b64decode(DATA)

    monkeypatch.setattr(HttpFetcher, "fetch", fetched)
    app, engine = await make_app(say("fine"))
    assert (await post(app, path, {"model": "m", **body})).status == 200
    assert engine.submitted[0][0].endswith(f"user:{text}\n?;")


async def test_as_many_files_by_url_are_in_memory_as_the_server_reads_at_once(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL is short, and its file may have 64 MB: a hundred requests must not fetch a hundred files."""
    held, most = 0, 0

    async def fetched(fetcher: HttpFetcher, url: Url) -> bytes:
        nonlocal held, most
        held += 1
        most = max(held, most)
        return b64decode(DATA)

    async def read(readers: PdfReaders, data: memoryview) -> Json:
        nonlocal held
        await asyncio.sleep(0)
        held -= 1
        return {"text": TEXT, "pages": 1}

    monkeypatch.setattr(HttpFetcher, "fetch", fetched)
    monkeypatch.setattr(PdfReaders, "read", read)
    monkeypatch.setattr("lean_ovms.features.pdf.sources.AT_ONCE", 2)
    app, _ = await make_app(lambda *_: say("fine"), enable_prefix_caching=False)
    body = {"model": "m", **chat({"file_url": "https://x.org/a.pdf"})}
    answers = await asyncio.gather(*(post(app, CHAT, body) for _ in range(9)))
    assert [answer.status for answer in answers] == [200] * 9
    assert (held, most) == (0, 2)

"""A server without vision rejects parts with images and says what it reads; fields of videos have no effect."""

from __future__ import annotations

from lean_ovms.composition import compose
from lean_ovms.features.docs_page.openapi import document
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say
from tests.pictures import data_url, part, user


async def test_an_image_is_refused_by_what_the_server_reads(make_app: MakeApp) -> None:
    app, engine = await make_app(say("fine"), without="vision")
    body = {"model": "m", "messages": [user("look:", part(data_url("red")))]}
    response = await post(app, "/v1/chat/completions", body)
    assert response.status == 400
    error = (await whole(response))["error"]
    assert error["message"] == "Unsupported content type: text, audio and PDF files are read, not 'image_url'"
    assert error["param"] == "messages[0].content[1]"
    assert engine.submitted == []


async def test_its_field_gets_a_warning_as_one_that_no_server_has(make_app: MakeApp) -> None:
    app, _ = await make_app(say("fine"), without="vision")
    body = {"model": "m", "messages": [user("hi")], "media_io_kwargs": {"video": {"num_frames": 2}}}
    response = await post(app, "/v1/chat/completions", body)
    assert response.status == 200
    assert [v for n, v in response.headers if n == "Warning"] == [
        '299 lean_ovms "media_io_kwargs is not supported and was ignored"'
    ]


def test_the_document_has_no_such_field() -> None:
    def fields(without: str) -> set[str]:
        operation = document(["m"], key=False, composition=compose(without))["paths"]["/v1/chat/completions"]["post"]
        return set(operation["requestBody"]["content"]["application/json"]["schema"]["properties"])

    assert fields("") - fields("vision") == {"media_io_kwargs"}
    assert fields("") - fields("audio_chat") == {"audio", "modalities"}

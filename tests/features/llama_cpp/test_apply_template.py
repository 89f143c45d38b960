"""/apply-template returns the text of a conversation, the same that chat gives the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}> {% endif %}"
)
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]


async def test_it_is_the_text_that_chat_sends(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("x"), chat_template=TEMPLATE)
    body = await whole(await post(app, "/apply-template", {"messages": MESSAGES}))
    assert body == {"prompt": "system: s\nuser: u\n> "}
    await whole(await post(app, "/v1/chat/completions", {"messages": MESSAGES}))
    assert [prompt for prompt, _ in engine.submitted] == [body["prompt"]]


async def test_without_the_start_of_an_answer(make_app: MakeApp) -> None:
    app, _ = await make_app(chat_template=TEMPLATE)
    body = await whole(await post(app, "/apply-template", {"messages": MESSAGES, "add_generation_prompt": False}))
    assert body["prompt"].endswith("u\n")

    response = await post(app, "/apply-template", {"messages": [{"role": "user", "content": 5}]})
    assert (response.status, (await whole(response))["error"]["param"]) == (400, "messages[0].content")


@pytest.mark.parametrize(("added", "prompt"), [("^", "u"), ("", "^u"), ("^$", "^u")])
async def test_a_bos_that_completion_adds_is_not_in_it(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, added: str, prompt: str
) -> None:
    app, engine = await make_app(chat_template="^{{ messages[0].content }}")
    engine.info = replace(engine.info, bos_token="^")

    async def encode(texts: list[str], add_special_tokens: bool, client: str) -> list[list[int]]:
        return [list((added * add_special_tokens + text).encode()) for text in texts]

    monkeypatch.setattr(engine, "encode", encode)
    body = await whole(await post(app, "/apply-template", {"messages": [{"role": "user", "content": "u"}]}))
    assert body == {"prompt": prompt}

"""Any body and any query gets a 2xx, or a 4xx with the error object, whatever was stored before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lean_ovms.api.app import App
from lean_ovms.api.fields import Field
from lean_ovms.config import Config
from lean_ovms.features.responses.api import conversations
from lean_ovms.features.responses.fields import ALL_FIELDS
from lean_ovms.models.text_model import TextModel
from lean_ovms.types import Request, Response
from tests.fakes import FakeEngine, say
from tests.features.responses.rules import check_response, parse_sse
from tests.fuzz.test_bodies import ANYTHING, SCALARS
from tests.streams import pieces

TEXT = st.text(max_size=5)


def mostly(good: Any, wrong: Any = ANYTHING) -> Any:
    """Returns a good value in nine of ten cases, so that bodies with many fields get past the first check."""
    return st.integers(0, 9).flatmap(lambda dice: wrong if dice == 0 else good)


PART = mostly(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["input_text", "output_text", "text", "refusal", "input_image", "input_file", "x"])},
        optional={"text": mostly(TEXT), "refusal": mostly(TEXT), "image_url": ANYTHING, "logprobs": ANYTHING},
    )
)
KINDS = ["message", "function_call", "function_call_output", "reasoning", "item_reference", "computer_call"]
ITEM = mostly(
    st.fixed_dictionaries(
        {"type": mostly(st.sampled_from(KINDS)), "role": mostly(st.sampled_from(["user", "system", "assistant"]))},
        optional={
            **dict.fromkeys(("id", "call_id", "name", "arguments"), mostly(TEXT)),
            **dict.fromkeys(("content", "output"), mostly(TEXT | st.lists(PART, max_size=3))),
            "summary": mostly(st.lists(st.fixed_dictionaries({"text": mostly(TEXT)}), max_size=2)),
        },
    )
)
TOOL = mostly(
    st.fixed_dictionaries(
        {"type": mostly(st.just("function")), "name": mostly(st.sampled_from(["f", "g"]))},
        optional={"parameters": mostly(st.just({"type": "object"})), "function": ANYTHING, "strict": ANYTHING},
    )
)
SPECIAL = {
    "input": mostly(st.text(min_size=1, max_size=8) | st.lists(ITEM, min_size=1, max_size=4)),
    "previous_response_id": mostly(st.sampled_from([None, "OLD", "resp_no"])),
    "conversation": mostly(st.sampled_from([None, "CONV", {"id": "CONV"}, "conv_no"])),
    "tools": mostly(st.lists(TOOL, max_size=2)),
    "tool_choice": mostly(st.sampled_from(["auto", "none", {"type": "function", "name": "f"}])),
    "include": mostly(st.just(["message.output_text.logprobs"]), st.lists(ANYTHING, max_size=2)),
    "reasoning": mostly(st.just({"effort": "low"}), st.dictionaries(st.sampled_from(["effort", "summary"]), ANYTHING)),
    "text": mostly(
        st.fixed_dictionaries({"format": mostly(st.just({"type": "text"}))}),
        st.dictionaries(st.sampled_from(["format", "verbosity"]), ANYTHING),
    ),
    "stream_options": st.dictionaries(st.sampled_from(["include_usage", "include_obfuscation", "x"]), SCALARS),
    "metadata": mostly(st.just({"a": "b"})),
    "n": mostly(st.integers(1, 3)),
    "items": st.lists(ITEM, max_size=4),
}
BY_KIND = {"bool": st.booleans(), "number": st.sampled_from([0.5, 1]), "string": TEXT, "any": st.none()}
BY_KIND |= {"int": st.integers(1, 40), "uint": st.integers(1, 40), "object": st.just({}), "array": st.just([])}


def optional(rows: Iterable[Field], names: Iterable[str]) -> dict[str, Any]:
    return {row.name: SPECIAL.get(row.name, mostly(BY_KIND[row.kind])) for row in rows if row.name in names}


NAMES = {row.name for row in ALL_FIELDS} - {"model", "input"}
RESPONSES = st.fixed_dictionaries({"model": mostly(st.just("m")), "input": SPECIAL["input"]}).flatmap(
    lambda base: st.sets(st.sampled_from(sorted(NAMES)), max_size=4).flatmap(
        lambda names: st.fixed_dictionaries({**{k: st.just(v) for k, v in base.items()}, **optional(ALL_FIELDS, names)})
    )
)
CONVERSATIONS = st.fixed_dictionaries({}, optional=optional(conversations.FIELDS, ("items", "metadata")))
QUERY = st.dictionaries(
    st.sampled_from(["stream", "starting_after", "limit", "order", "after", "include[]"]),
    st.sampled_from(["true", "false", "0", "1", "5", "-1", "100", "1" * 30, "asc", "desc", "", "é", "%00"]),
    max_size=3,
)


class LoadedApp:
    """An app for many requests, with something stored. OLD and CONV stand for the ids."""

    def __init__(self) -> None:
        config = Config(fake_engine=True, model_name="m", access_log=False, response_store_max_count=5000)
        self.engine = FakeEngine(lambda prompt, sampling: say("a", "b", sequences=sampling.n))
        self.app = App(config, [TextModel(config, self.engine)])  # type: ignore[arg-type]

    async def open(self) -> None:
        for model in self.app.registry.models.values():
            await model.load()
        old = await self.send("POST", "/v1/responses", {"model": "m", "input": "hi", "background": True})
        conversation = await self.send("POST", "/v1/conversations", {})
        self.ids = {"OLD": old["id"], "CONV": conversation["id"]}
        await self.app.drain(10)

    async def send(self, method: str, path: str, body: Any = None, query: str = "") -> Any:
        headers = {"content-type": "application/json"}
        data = b"" if body is None else orjson.dumps(body)
        response = await self.app.handle(Request(method, path, query, headers, data))
        try:
            return await self.checked(response)
        finally:
            await response.aclose()

    async def checked(self, response: Response) -> Any:
        if not isinstance(response.body, bytes):
            events = parse_sse(b"".join([part async for part in pieces(response.body)]))
            assert events[-1]["type"] in ("response.completed", "response.incomplete")
            return events[-1]["response"]
        if response.body.startswith(b"event: ") or response.body == b"data: [DONE]\n\n":
            return parse_sse(response.body)
        content = orjson.loads(response.body)
        assert 200 <= response.status < 300 or 400 <= response.status < 500, content
        if response.status >= 400:
            assert set(content["error"]) == {"message", "type", "param", "code"}
            assert content["error"]["message"]
        return content

    def named(self, body: Any) -> Any:
        """Returns the body with the ids in place of their names."""
        text = orjson.dumps(body).decode()
        for name, real in self.ids.items():
            text = text.replace(f'"{name}"', f'"{real}"')
        return orjson.loads(text)


@pytest.mark.slow
def test_any_body_and_any_query_is_answered() -> None:
    loop = asyncio.new_event_loop()
    loaded = LoadedApp()
    loop.run_until_complete(loaded.open())
    answered: list[int] = []

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(RESPONSES, CONVERSATIONS, QUERY, st.sampled_from(["", "/input_items"]))
    def check(body: dict[str, Any], conversation: dict[str, Any], query: dict[str, str], tail: str) -> None:
        async def talk() -> None:
            answer = await loaded.send("POST", "/v1/responses", loaded.named(body))
            if answer.get("object") == "response" and "prompt_cache_retention" not in body:
                answered.append(1)
                if "tools" not in body and "text" not in body and "response_format" not in body:
                    check_response(answer)
            await loaded.send("POST", "/v1/responses/input_tokens", loaded.named(body))
            await loaded.send("POST", "/v1/conversations", conversation)
            await loaded.send("POST", f"/v1/conversations/{loaded.ids['CONV']}/items", conversation)
            await loaded.send("GET", f"/v1/responses/{loaded.ids['OLD']}{tail}", query=urlencode(query))

        try:
            orjson.dumps([body, conversation])
        except TypeError:  # half a surrogate pair is not JSON
            return
        loop.run_until_complete(talk())
        loop.run_until_complete(loaded.app.drain(10))
        assert not loaded.engine.mail.busy

    try:
        check()
        assert len(answered) > 3, "some must get far"
    finally:
        loop.run_until_complete(loaded.app.close())
        loop.close()

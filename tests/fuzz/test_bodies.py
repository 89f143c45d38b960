"""Any JSON body of a chat gets a 2xx, or a 4xx with the error object, but never a 5xx, an exception or a request left
running.

Bodies consist of the API's own fields with right and wrong values, and of messages, calls and tools with right and
wrong members, so that they get past the first check. test_hostile_bodies.py has all other endpoints.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lean_ovms.api.app import App
from lean_ovms.api.fields import Field
from lean_ovms.api.generation.sampling import SAMPLING
from lean_ovms.config import Config
from lean_ovms.features.chat import request as chat_request
from lean_ovms.models.text_model import TextModel
from lean_ovms.types import Request
from tests.fakes import FakeEngine, say
from tests.fuzz import examples
from tests.streams import pieces

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0, 1, -1, 2, 20, 2**31 - 1, 2**31, 2**32, 1e308, -1e308, 0.5, 1e-320]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
)
PART = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5)}),
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", "input_audio", "x"])}),
    ANYTHING,
)
CALL = st.fixed_dictionaries(
    {"id": ANYTHING, "function": st.one_of(st.fixed_dictionaries({"name": ANYTHING, "arguments": ANYTHING}), ANYTHING)}
)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.one_of(st.sampled_from(["system", "user", "assistant", "tool"]), SCALARS),
        "content": st.one_of(st.text(max_size=8), st.none(), st.lists(PART, max_size=3), ANYTHING),
    },
    optional={"tool_calls": st.lists(CALL, max_size=2) | ANYTHING, "name": ANYTHING, "reasoning_content": ANYTHING},
)
TOOL = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": st.text(max_size=5), "parameters": ANYTHING}),
        }
    ),
    st.fixed_dictionaries({"type": st.just("function"), "name": ANYTHING, "parameters": ANYTHING}),
    ANYTHING,
)
SPECIAL = {
    "model": st.just("m") | ANYTHING,
    "messages": st.lists(MESSAGE, min_size=1, max_size=3) | ANYTHING,
    "tools": st.lists(TOOL, max_size=2) | ANYTHING,
    "stop": st.lists(st.text(max_size=3), max_size=18) | ANYTHING,
    "stream_options": st.dictionaries(st.sampled_from(["include_usage", "continuous_usage_stats", "x"]), SCALARS),
    "n": st.integers(0, 25) | ANYTHING,
    "best_of": st.integers(0, 25) | ANYTHING,
}


def body_of(rows: tuple[Field, ...], always: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = {row.name for row in rows} | {"stream", "stream_options", "return_token_ids", "logit_bias", "unknown"}
    optional = {name: SPECIAL.get(name, ANYTHING) for name in names if name not in always}
    mostly = {name: st.one_of(st.just(good), SPECIAL[name]) for name, good in always.items()}
    return st.fixed_dictionaries(mostly, optional=optional)


PATH = "/v1/chat/completions"
BODIES = body_of((*chat_request.FIELDS, *SAMPLING), {"model": "m", "messages": [{"role": "user", "content": "hi"}]})


async def answer(*bodies: bytes) -> None:
    config = Config(fake_engine=True, model_name="m", access_log=False)
    engine = FakeEngine(lambda prompt, sampling: say("a", "b", sequences=sampling.n))
    model = TextModel(config, engine)  # type: ignore[arg-type]
    app = App(config, [model])
    await model.load()
    for data in bodies:
        response = await app.handle(Request("POST", PATH, headers={"content-type": "application/json"}, body=data))
        try:
            if isinstance(response.body, bytes):
                content = orjson.loads(response.body)
            else:
                content = None
                stream = b"".join([part async for part in pieces(response.body)])
                assert stream.endswith(b"data: [DONE]\n\n")
                assert b'"error"' not in stream
        finally:
            await response.aclose()
        assert 200 <= response.status < 300 or 400 <= response.status < 500, (data[:20], response.status, content)
        if response.status >= 400:
            assert set(content["error"]) == {"message", "type", "param", "code"}
            assert content["error"]["message"]
        assert not engine.mail.busy


@pytest.mark.slow
@examples(40)
@given(BODIES)
def test_any_body_is_answered(body: dict[str, Any]) -> None:
    try:
        data = orjson.dumps(body)
    except (TypeError, orjson.JSONEncodeError):
        return
    asyncio.run(answer(data))


HOSTILE = [
    b"",
    b"null",
    b"[" * 50_000,
    b'{"a":' * 50_000,
    b'{"model": "\xff"}',
    b'{"model": "\\ud800"}',
    '{"model": "m"}'.encode("utf-16"),
    b'{"model": "m", "model": 5}',
    b'{"model": NaN}',
    b'{"model": "m", "seed": ' + b"9" * 5000 + b"}",
    b'{"model": "m\\u0000"}',
]


async def test_hostile_json_is_a_400_or_404() -> None:
    await answer(*HOSTILE)

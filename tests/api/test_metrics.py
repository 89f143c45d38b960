"""/metrics: off unless asked for; counts exchanges by route and tokens by model."""

from __future__ import annotations

from fakes import say

from .conftest import MakeApp, events, get, post, whole

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def test_metrics_are_off_unless_asked_for(make_app: MakeApp) -> None:
    app, _ = await make_app()
    assert (await get(app, "/metrics")).status == 404


async def test_what_is_counted(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("a", "b"), metrics_enable=True)
    await whole(await post(app, CHAT, HELLO))
    await events(await post(app, CHAT, {**HELLO, "stream": True}))
    await whole(await post(app, CHAT, {**HELLO, "temperature": 9}))
    await whole(await get(app, "/no/such/path/12345"))
    response = await get(app, "/metrics")
    assert isinstance(response.body, bytes)
    text = response.body.decode()
    for line in (
        'lean_ovms_requests_total{method="POST",path="/v1/chat/completions",status="200"} 2.0',
        'lean_ovms_requests_total{method="POST",path="/v1/chat/completions",status="400"} 1.0',
        'lean_ovms_requests_total{method="other",path="other",status="404"} 1.0',
        'lean_ovms_prompt_tokens_total{model="m"} 16.0',
        'lean_ovms_completion_tokens_total{model="m"} 6.0',
        'lean_ovms_time_to_first_token_seconds_count{model="m"} 2.0',
        'lean_ovms_kv_cache_used_ratio{model="m"} 0.0',
    ):
        assert line in text
    assert "12345" not in text
    engine.state = "restarting"
    assert (await get(app, "/metrics")).status == 200

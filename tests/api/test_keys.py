"""A single API key for all clients."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from lean_ovms.api.keys import ApiKeys, authorization, kind_of
from lean_ovms.config import Config
from lean_ovms.errors import WrongOptions
from lean_ovms.server.checks import checked
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, get, post
from tests.fakes import say

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("without", ["", "named_keys"])
async def test_it_opens_everything_and_no_other_does(make_app: MakeApp, without: str) -> None:
    app, engine = await make_app(lambda *_: say("x"), api_key="secret", without=without)
    for headers in ({"authorization": "Bearer secret"}, {"x_api_key": " secret "}):
        assert (await post(app, CHAT, HELLO, **headers)).status == 200
        assert (await post(app, "/reset_prefix_cache", {}, **headers)).status == 200
    for wrong in ({}, {"authorization": "Bearer secre"}, {"authorization": "Basic secret"}, {"x_api_key": ""}):
        assert (await post(app, CHAT, HELLO, **wrong)).status == 401
        assert (await post(app, "/reset_prefix_cache", {}, **wrong)).status == 401
    assert (await get(app, "/v1/models")).status == (await get(app, "/health")).status == 200
    assert [client for client, *_ in engine.origins] == ["", ""]


def test_t14_it_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, compared = ApiKeys(Config(fake_engine=True, api_key="sécret")), list[tuple[bytes, bytes]]()
    monkeypatch.setattr(hmac, "compare_digest", lambda *pair: compared.append(pair) or pair[0] == pair[1])
    sent = "sécret".encode().decode("latin-1")  # as in a header
    assert keys.find(Request("POST", CHAT, headers={"x-api-key": sent})) is not None
    digest = hashlib.sha256("sécret".encode()).digest()
    assert compared == [(digest, digest)]


@pytest.mark.parametrize("without", ["", "named_keys"])
@pytest.mark.parametrize("key", ["secret\n", " secret", "schlüssel", "voilà", "Å", "鍵"])
def test_a_key_in_any_alphabet_is_found_without_the_blanks_around_it(key: str, without: str) -> None:
    config = checked(Config(fake_engine=True, api_key=key, without=without))
    headers = {"authorization": authorization(config.api_key)}
    assert kind_of(config)(config).find(Request("POST", CHAT, headers=headers)) is not None
    assert headers["authorization"].encode("latin-1") == f"Bearer {key.strip()}".encode()


@pytest.mark.parametrize("key", ["\n", "  ", "a\nb", "a\x7f"])
def test_a_key_that_no_client_can_send_stops_the_start(key: str) -> None:
    with pytest.raises(WrongOptions, match="the API key must be one line of text that is not blank"):
        checked(Config(fake_engine=True, api_key=key))

"""The name of a client is its address, or what a trusted proxy reports; it reaches the engine."""

from __future__ import annotations

import tracemalloc
from typing import Any

import orjson
import pytest

from lean_ovms.api.middleware import Clients, address_in
from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, whole
from tests.fakes import say

CHAT = "/v1/chat/completions"
HI = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def name(peer: str, forwarded: str = "", trusted: str = "") -> str:
    headers = {"x-forwarded-for": forwarded} if forwarded else {}
    return Clients(Config(trusted_proxies=trusted)).identify(Request("GET", "/", headers=headers, peer=peer))


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("10.1.2.3:5000", "10.1.2.3"),
        ("[2001:db8:1:2:3:4:5:6]:5000", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:ffff::1]:5001", "2001:db8:1:2::/64"),
        ("[::ffff:10.1.2.3]:5000", "10.1.2.3"),
        ("[fe80::1%eth0]:5000", "fe80::/64"),
        ("unix", "unix"),
        ("", ""),
    ],
)
def test_a_client_is_its_peers_address(peer: str, client: str) -> None:
    assert name(peer) == client


def test_nobody_is_believed_who_is_not_trusted() -> None:
    assert name("10.1.2.3:5000", "1.2.3.4") == "10.1.2.3"
    assert name("10.1.2.3:5000", "1.2.3.4", "10.9.0.0/16, unix") == "10.1.2.3"
    assert name("unix", "1.2.3.4", "10.9.0.0/16") == "unix"


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("1.2.3.4:77", "1.2.3.4"),
        ("[2001:db8::1]:77", "2001:db8::/64"),
        ("6.6.6.6, 1.2.3.4", "1.2.3.4"),  # only what trusted proxies have added counts
        ("6.6.6.6, 1.2.3.4, 10.9.0.7,10.9.1.1", "1.2.3.4"),
        ("nonsense", "10.9.0.1"),
        ("1.2.3.4, nonsense", "10.9.0.1"),
        ("10.9.0.5", "10.9.0.5"),
        (", ".join(["10.9.0.2"] * 5000), "10.9.0.2"),
    ],
)
def test_a_trusted_proxy_says_who_its_client_is(forwarded: str, client: str) -> None:
    assert name("10.9.0.1:5000", forwarded, "10.9.0.0/16") == client


def test_long_texts_in_place_of_addresses_are_not_kept() -> None:
    tracemalloc.start()
    try:
        assert not any(address_in(f"{number}.{'x' * 50_000}") for number in range(40))
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_unix_and_all_are_trusted_by_their_names() -> None:
    assert name("unix", "1.2.3.4", "unix") == "1.2.3.4"
    assert name("10.1.2.3:5", "1.2.3.4, 5.6.7.8", "all") == "1.2.3.4"


def test_what_is_no_address_stops_the_start() -> None:
    with pytest.raises(StartError, match=r"--trusted_proxies: 'proxy\.local' is not an IP"):
        Clients(Config(trusted_proxies="10.0.0.1, proxy.local"))


async def send(
    make_app: MakeApp, *bodies: dict[str, Any], path: str = CHAT, **options: Any
) -> list[tuple[str, int, int]]:
    app, engine = await make_app(say("x", sequences=2), trusted_proxies="10.0.0.1", **options)
    for body in bodies:
        headers = {"content-type": "application/json", "x-forwarded-for": "1.2.3.4"}
        request = Request("POST", path, headers=headers, body=orjson.dumps(body), peer="10.0.0.1:9")
        response = await app.handle(request)
        assert response.status == 200, await whole(response)
    return engine.origins


async def test_client_request_and_priority_reach_the_engine(make_app: MakeApp) -> None:
    first, second = await send(make_app, HI, {**HI, "priority": -7})
    assert (first[0], first[2]) == ("1.2.3.4", 0)
    assert (second[0], second[2]) == ("1.2.3.4", -7)
    assert first[1] != second[1]


async def test_prompts_of_one_request_belong_together(make_app: MakeApp) -> None:
    body = {"model": "m", "prompt": ["a", "b", "c"], "priority": 3}
    origins = await send(make_app, body, path="/v1/completions")
    assert len(set(origins)) == 1
    assert len(origins) == 3
    assert origins[0][2] == 3


@pytest.mark.parametrize(
    ("fields", "param"), [({"n": 2}, "n"), ({"best_of": 2, "n": 1}, "best_of"), ({"prompt": ["x"] * 5}, "prompt")]
)
async def test_the_sequences_of_a_request_are_limited(make_app: MakeApp, fields: dict[str, Any], param: str) -> None:
    app, engine = await make_app(say("x"), max_sequences_per_request=4)
    body = orjson.dumps({"model": "m", "prompt": ["x"] * 3, **fields})
    response = await app.handle(
        Request("POST", "/v1/completions", headers={"content-type": "application/json"}, body=body)
    )
    assert response.status == 400
    error = (await whole(response))["error"]
    assert error["param"] == param
    assert "limit of 4 sequences" in error["message"]
    assert not engine.submitted

"""The router of Ray's proxies, on a stand-in for Ray's base class: which replica it chooses, and what it remembers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import orjson
import pytest

from lean_ovms.features.ray.prompts import IN_FLIGHT, MADE_BY, MARKS, ProxiedRequest

ROUTER = "lean_ovms.features.ray.router"
LONG = "the rain in spain falls mainly on the plain " * 20


@dataclass(frozen=True)
class ReplicaID:
    """Ray's class, as far as the router uses it."""

    unique_id: str


A, B, C = (SimpleNamespace(replica_id=ReplicaID(name), routing_stats={}) for name in "abc")


class RequestRouter:
    """Ray's class, as far as the router uses it."""

    def __init__(self) -> None:
        self.curr_replicas: dict[Any, Any] = {}
        self.replica_queue_len_cache: dict[Any, int] = {}

    def update_replicas(self, replicas: list[Any]) -> None:
        self.curr_replicas = {one.replica_id: one for one in replicas}

    def on_replica_actor_died(self, replica_id: Any) -> None:
        self.curr_replicas.pop(replica_id, None)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("ray", "ray.serve", "ray.serve.request_router"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["ray.serve.request_router"], "RequestRouter", RequestRouter, raising=False)
    monkeypatch.delitem(sys.modules, ROUTER, raising=False)
    yield importlib.import_module(ROUTER)
    sys.modules.pop(ROUTER, None)
    IN_FLIGHT.clear()
    MADE_BY.clear()


@pytest.fixture
def router(module: Any) -> Any:
    made = module.PrefixAffinityRouter()
    made.initialize_state(most_ahead=2)
    made.update_replicas([A, B, C])
    return made


def pending(request_id: str, text: str = "", session: str = "", **fields: str) -> Any:
    """Returns a request as the router in a proxy gets it."""
    IN_FLIGHT[request_id] = ProxiedRequest("/v1/responses", {}, orjson.dumps({"model": "m", "input": text, **fields}))
    metadata = SimpleNamespace(request_id=request_id, session_id=session)
    return SimpleNamespace(metadata=metadata, routing_context=SimpleNamespace(should_backoff=False))


async def chosen(router: Any, request: Any, replicas: tuple[Any, ...] = (A, B, C)) -> Any:
    """Returns the first choice, and checks that every replica is among the choices once."""
    ranks = await router.choose_replicas(list(replicas), request)
    assert request.routing_context.should_backoff
    assert sorted(one.replica_id.unique_id for rank in ranks for one in rank) == [
        one.replica_id.unique_id for one in replicas
    ]
    [first] = ranks[0]
    return first


async def test_the_next_turn_goes_to_the_replica_that_took_the_first(router: Any) -> None:
    first = pending("1", LONG)
    await chosen(router, first)
    router.on_request_routed(first, B.replica_id, None)  # its first choice was full
    assert IN_FLIGHT.pop("1").replica == B.replica_id
    for number in range(3):
        assert await chosen(router, pending(f"t{number}", LONG + "and on")) is B
    assert await chosen(router, pending("t4", LONG + "and on")) is not B, "three more than the others have"


async def test_requests_of_the_same_moment_are_spread(router: Any) -> None:
    """None of them has arrived at a replica yet."""
    assert {id(await chosen(router, pending(str(n), f"{n}{LONG}"))) for n in range(3)} == {id(A), id(B), id(C)}


async def test_a_response_goes_on_where_it_was_made(router: Any) -> None:
    first = pending("1", "short")
    router.on_request_routed(first, B.replica_id, None)
    IN_FLIGHT["1"].answered(b'{"id":"resp_1"}')
    for number in range(5):
        assert await chosen(router, pending(f"t{number}", "more", previous_response_id="resp_1")) is B
    gone = await chosen(router, pending("2", LONG, previous_response_id="resp_1"), (A, C))
    assert gone in (A, C), "its replica has ended"


async def test_what_other_proxies_have_sent_is_known_from_the_replicas_reports(router: Any) -> None:
    request = pending("1", LONG)
    report = {MARKS: b"".join(IN_FLIGHT.pop("1").marks())}
    told = SimpleNamespace(replica_id=B.replica_id, routing_stats=report)
    router.update_replicas([A, told, C])
    router.replica_queue_len_cache.update({B.replica_id: 1})
    assert await chosen(router, pending("2", LONG + "and on"), (A, told, C)) is told
    assert await chosen(router, pending("3", LONG[1:]), (A, told, C)) is not told
    router.update_replicas([A, B, C])
    IN_FLIGHT.clear()
    assert await chosen(router, pending("4", LONG + "and on")) is not B
    assert request


async def test_what_other_proxies_have_sent_counts(router: Any) -> None:
    router.replica_queue_len_cache.update({A.replica_id: 5, C.replica_id: 1})
    assert await chosen(router, pending("1", LONG)) is B


async def test_requests_without_a_prompt_are_spread_by_chance(router: Any) -> None:
    found = set()
    while len(found) < 3:  # a client that asks again reaches another replica
        found.add(id(await chosen(router, pending("1"))))
        del IN_FLIGHT["1"]
    assert (await router.choose_replicas([A], None), await router.choose_replicas([], pending("2"))) == ([[A]], [[]])


async def test_a_session_has_its_replica_in_every_proxy(router: Any, module: Any) -> None:
    other = module.PrefixAffinityRouter()
    other.initialize_state()
    homes = {}
    for number in range(60):
        request = pending("s", session=f"session {number}")
        homes[number] = await chosen(router, request)
        assert await chosen(other, request) is homes[number]
    assert len({id(one) for one in homes.values()}) == 3
    for number, home in homes.items():
        if home is not C:
            assert await chosen(router, pending("s", session=f"session {number}"), (A, B)) is home


@pytest.mark.parametrize("told", ["died", "update"])
async def test_what_a_replica_knew_ends_with_it(router: Any, told: str) -> None:
    request = pending("1", LONG)
    router.on_request_routed(request, B.replica_id, None)
    IN_FLIGHT.clear()
    if told == "died":
        router.on_replica_actor_died(B.replica_id)
    else:
        router.update_replicas([A, C])
    router.replica_queue_len_cache.update({B.replica_id: 1})
    assert await chosen(router, pending("2", LONG)) is not B


async def test_where_this_package_is_missing_load_decides(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray sends the code of the router to processes that may not have the rest."""
    monkeypatch.setitem(sys.modules, "lean_ovms.features.ray.prompts", None)
    router = module.PrefixAffinityRouter()
    router.initialize_state()
    router.update_replicas([A, B, C])
    router.replica_queue_len_cache.update({A.replica_id: 1, C.replica_id: 1})
    request = pending("1", LONG)
    assert await chosen(router, request) is B
    router.on_request_routed(request, B.replica_id, None)
    router.on_replica_actor_died(B.replica_id)

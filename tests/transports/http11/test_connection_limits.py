"""Which connections make room for others, without sockets."""

from __future__ import annotations

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import Unavailable
from lean_ovms.transports.http11.request_parser import RequestHead
from lean_ovms.transports.http11.server_state import IDLE_GRACE_S, MAX_SURPLUS, MIN_SURPLUS, ConnectionLimits, client_of


class Fake:
    """A connection that has been idle since a given time, and records what happens to it."""

    def __init__(self, client: str, since: float | None) -> None:
        self.client = client
        self.idle_since = since
        self.fate = "open"

    def drain(self) -> None:
        self.fate = "closed"

    def abort(self) -> None:
        self.fate = "aborted"

    def restrict(self) -> None:
        self.fate = "restricted"


def limits(**options: int) -> ConnectionLimits:
    return ConnectionLimits(Config(**options), lambda method, path: path == "/health")


def opened(keeper: ConnectionLimits, client: str = "a", since: float = 0.0) -> Fake:
    fake = Fake(client, since)
    keeper.opened(fake)
    return fake


def test_the_longest_idle_one_makes_room() -> None:
    keeper = limits(max_connections=3, max_connections_per_client=3)
    first, second, third = (opened(keeper, since=float(n)) for n in range(3))
    first.idle_since = 5.0  # it had a request meanwhile
    keeper.idle(first)
    newcomer = opened(keeper, since=9.0)
    assert [fake.fate for fake in (first, second, third, newcomer)] == ["open", "closed", "open", "open"]
    third.idle_since = None  # busy
    assert opened(keeper, since=10.0).fate == "open"
    assert [fake.fate for fake in (first, third, newcomer)] == ["closed", "open", "open"]
    keeper.closed(first)  # the transport reports it later
    assert opened(keeper, since=10.5).fate == "open"


def test_a_connection_is_not_closed_before_its_first_request_can_have_arrived() -> None:
    keeper = limits(max_connections=2, max_connections_per_client=2)
    old = [opened(keeper, since=1.0) for _ in range(2)]
    assert opened(keeper, since=1.0 + IDLE_GRACE_S / 2).fate == "restricted"
    assert [fake.fate for fake in old] == ["open", "open"]


def test_a_client_makes_room_for_itself_only() -> None:
    keeper = limits(max_connections=100, max_connections_per_client=2)
    other = opened(keeper, "b", 0.0)
    first, second = opened(keeper, since=1.0), opened(keeper, since=2.0)
    assert opened(keeper, since=9.0).fate == "open"
    assert [fake.fate for fake in (other, first, second)] == ["open", "closed", "open"]
    unix = [opened(keeper, "", since=0.0) for _ in range(10)]
    assert {fake.fate for fake in unix} == {"open"}
    assert opened(keeper, "b", 9.0).fate == "open"


def test_without_an_option_one_client_has_three_quarters() -> None:
    keeper = limits(max_connections=8)
    assert [opened(keeper, since=0.0).fate for _ in range(7)] == ["open"] * 6 + ["restricted"]
    assert [opened(keeper, "b", since=0.0).fate for _ in range(2)] == ["open"] * 2


@pytest.mark.parametrize(("most", "reserve"), [(1, MIN_SURPLUS), (16, 16), (1024, MAX_SURPLUS)])
def test_the_reserve_has_an_end_and_the_newest_stays(most: int, reserve: int) -> None:
    keeper = limits(max_connections=most, max_connections_per_client=most)
    for _ in range(most):
        opened(keeper)
    surplus = [opened(keeper) for _ in range(reserve + 1)]
    assert [fake.fate for fake in surplus] == ["aborted"] + ["restricted"] * reserve
    for fake in surplus[: reserve // 2]:
        keeper.closed(fake)
    assert [opened(keeper).fate for _ in range(2)] == ["restricted"] * 2
    assert surplus[-1].fate == "restricted"


def test_heads_in_the_reserve() -> None:
    keeper = limits()
    keeper.check_head(RequestHead("GET", "/health", "", {}, 0, True))
    with pytest.raises(Unavailable, match="the server has too many open connections"):
        keeper.check_head(RequestHead("GET", "/v1/models", "", {}, 0, True))


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%eth0", 1, 0, 3), "fe80::"),
        (("::ffff:192.0.2.7", 1, 0, 0), "192.0.2.7"),
        ("", ""),
        (None, ""),
    ],
)
def test_the_client_of_an_address(peer: object, client: str) -> None:
    assert client_of(peer) == client

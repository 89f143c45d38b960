"""A request that changes the state of a server is passed on to the other replicas, and its answer combines theirs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import orjson
import pytest

from lean_ovms.api import router
from lean_ovms.composition import compose
from lean_ovms.features.ray import metrics, replicas
from lean_ovms.features.ray.metrics import Reporter, publishing, samples
from lean_ovms.features.ray.prompts import MARKED, ProxiedRequest, reported
from lean_ovms.features.ray.replicas import COUNT, ONE_ALONE, Change, Replicas
from lean_ovms.manifest import BASES, Route
from lean_ovms.types import Request, Response

ROUTES = {
    "/load": Route("POST", "/load", "x:y", changes=True, lasting="name"),
    "/unload": Route("POST", "/unload", "x:y", changes=True, lasting="name"),
    "/scales": Route("POST", "/scales", "x:y", changes=True, lasting="scales"),
    "/reset": Route("POST", "/reset", "x:y", changes=True),
    "/slots/1": Route("POST", "/slots/{id}", "x:y", changes=True, by_one=True),
    "/chat": Route("POST", "/chat", "x:y"),
}


class ClosedResponse(Response):
    """A response that knows whether it was closed."""

    closed = False

    async def aclose(self) -> None:
        self.closed = True


class App:
    """An app that records its requests, and answers all with one status."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.asked: list[Request] = []
        self.made: list[ClosedResponse] = []
        self.waits = asyncio.Event()
        self.waits.set()
        self.config = SimpleNamespace(composition=compose())

    def route(self, request: Request) -> Route | None:
        return ROUTES.get(request.path)

    async def handle(self, request: Request) -> Response:
        copy = Request(request.method, request.path, request.query, request.headers, request.body)
        self.asked.append(copy)
        request.drop_body()
        await self.waits.wait()
        self.made.append(ClosedResponse(self.status, [], orjson.dumps({"is": self.status})))
        return self.made[-1]


class Fleet:
    """The replicas of one deployment in one process, with what Ray provides for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *statuses: int) -> None:
        self.apps = [App(status) for status in statuses]
        self.replicas: list[Replicas] = []
        self.dead = self.late = False
        self.servable: Any = SimpleNamespace(change=None)
        serve = ModuleType("ray.serve")
        serve.get_replica_context = lambda: SimpleNamespace(  # type: ignore[attr-defined]
            replica_id=SimpleNamespace(unique_id=f"r{len(self.replicas)}"),
            deployment="LeanOvms",
            app_name="llm",
            servable_object=self.servable,
        )
        serve.get_deployment_handle = self._found  # type: ignore[attr-defined]
        ray = ModuleType("ray")
        ray.serve = serve  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setitem(sys.modules, "ray.serve", serve)
        for app in self.apps:
            self.replicas.append(Replicas(app))  # type: ignore[arg-type]

    def _found(self, deployment: str, app: str) -> Any:
        assert (deployment, app) == ("LeanOvms", "llm")
        return SimpleNamespace(broadcast=self._broadcast)

    def _broadcast(self, method: str, *arguments: Change) -> Any:
        async def results(timeout_s: float, return_exceptions: bool) -> list[Any]:
            if self.late:
                raise TimeoutError
            found = [getattr(replica, method)(*arguments) for replica in self.replicas]
            found = [await one if asyncio.iscoroutine(one) else one for one in found]
            return [*found, RuntimeError("secret")] if self.dead else found

        return SimpleNamespace(results_async=results)

    async def ask(self, path: str, body: bytes = b"body", replica: int = 0, query: str = "a=1") -> Response:
        request = Request("POST", path, query, {"authorization": "Bearer k"}, body)
        return await self.replicas[replica].handle(request)

    def another(self) -> tuple[App, Replicas]:
        """Starts another replica; the others do not know it yet."""
        app: Any = App()
        return app, Replicas(app)


Made = Callable[..., Fleet]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Made:
    return lambda *statuses: Fleet(monkeypatch, *statuses)


async def test_a_change_is_made_by_every_replica_once(fleet: Made) -> None:
    three = fleet(200, 200, 200)
    response = await three.ask("/load")
    assert (response.status, response.headers) == (200, [(COUNT, "3")])
    for app in three.apps:
        [asked] = app.asked
        assert (asked.method, asked.query, asked.headers, asked.body) == (
            *("POST", "a=1"),
            *({"authorization": "Bearer k"}, b"body"),
        )


async def test_what_a_change_holds_is_released_if_its_client_leaves_meanwhile(fleet: Made) -> None:
    two = fleet(200, 200)
    two.apps[1].waits = asyncio.Event()
    asking = asyncio.create_task(two.ask("/load"))
    while not two.apps[1].asked:
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    assert [made.closed for made in two.apps[0].made] == [True]


async def test_a_change_that_is_refused_goes_no_further(fleet: Made) -> None:
    two = fleet(400, 200)
    assert (await two.ask("/load")).status == 400
    assert two.apps[1].asked == []


async def test_a_change_that_another_replica_does_not_make_is_an_error_that_says_so(fleet: Made) -> None:
    response = await fleet(200, 200, 404).ask("/load")
    assert (response.status, dict(response.headers)["Retry-After"]) == (503, "2")
    assert isinstance(response.body, bytes)
    error = orjson.loads(response.body)["error"]
    assert error["code"] == "replicas_differ"
    assert error["message"].startswith("1 of 3 replicas have not done this: r2:")
    assert "404" in error["message"]


@pytest.mark.parametrize(("failing", "why"), [("dead", "RuntimeError"), ("late", "TimeoutError")])
async def test_a_replica_that_dies_or_is_late_has_not_made_it_and_teaches_nothing(
    fleet: Made, failing: str, why: str
) -> None:
    one = fleet(200)
    setattr(one, failing, True)
    response = await one.ask("/reset")
    assert (response.status, why in str(response.body), "secret" in str(response.body)) == (503, True, False)
    app, new = one.another()
    await new.catch_up()
    assert app.asked == []


async def test_a_class_around_the_server_that_takes_no_changes_is_told_of_by_the_answer(fleet: Made) -> None:
    two = fleet(200, 200)
    two.servable = SimpleNamespace()
    response = await two.ask("/load")
    [(name, warning)] = response.headers
    assert (response.status, name, ONE_ALONE in warning) == (200, "Warning", True)
    assert two.apps[1].asked == []


def load(name: str, path: str = "p") -> bytes:
    return orjson.dumps({"name": name, "path": path})


def asked(app: App) -> list[tuple[str, bytes]]:
    return [(one.path, one.body) for one in app.asked]


async def test_a_replica_that_starts_makes_the_changes_that_last(fleet: Made) -> None:
    two = fleet(200, 200)
    for path, body in [("/load", load("x")), ("/load", load("y")), ("/reset", b""), ("/load", load("z"))]:
        assert (await two.ask(path, body)).status == 200
    assert (await two.ask("/unload", load("x"), replica=1)).status == 200
    assert (await two.ask("/load", load("y", "q"))).status == 200
    app, new = two.another()
    await new.catch_up()
    last = [("/load", load("z")), ("/unload", load("x")), ("/load", load("y", "q"))]
    assert asked(app) == last, "the last change of each, in their order"
    await new.catch_up()
    assert asked(app) == last, "once"
    assert (await two.ask("/load", load("w"))).status == 200
    await new.catch_up()
    assert asked(app)[3:] == [("/load", load("w"))], "made while the others did not know of it"


async def test_a_change_whose_body_is_an_array_is_one_of_the_model_in_the_query(fleet: Made) -> None:
    one = fleet(200)
    for body, query in ((b"[1]", "model=x"), (b"[2]", "model=y"), (b"[3]", "model=x"), (b"[4]", "")):
        await one.ask("/scales", body, query=query)
    app, new = one.another()
    await new.catch_up()
    assert [request.body for request in app.asked] == [b"[2]", b"[3]", b"[4]"]


async def test_a_later_replica_learns_from_one_that_has_learned_itself(fleet: Made) -> None:
    one = fleet(200)
    await one.ask("/load", load("x"))
    _, second = one.another()
    await second.catch_up()
    one.replicas = [second]
    app, third = one.another()
    await third.catch_up()
    assert asked(app) == [("/load", load("x"))]


async def test_so_many_changes_are_remembered(fleet: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "MOST_LASTING", 2)
    one = fleet(200)
    for name in "abca":
        await one.ask("/load", load(name))
    app, new = one.another()
    await new.catch_up()
    assert asked(app) == [("/load", load("c")), ("/load", load("a"))]


async def test_a_replica_reports_the_beginnings_of_prompts_that_it_has_answered(
    fleet: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prompt(letter: str, blocks: int, status: int = 200, **headers: str) -> list[bytes]:
        body = orjson.dumps({"model": "m", "prompt": letter * MARKED * blocks})
        given = {"content-type": "application/json", **headers}
        two.apps[0].status = status
        await two.replicas[0].handle(Request("POST", "/chat", "", given, body))
        return ProxiedRequest("/chat", given, body).marks()

    two = fleet(200, 200)
    first = await prompt("a", 3)
    assert (len(first), reported(two.replicas[0].known())) == (3, {*first})
    await prompt("b", 2, status=400)
    assert reported(two.replicas[0].known()) == {*first}
    other = await prompt("a", 3, authorization="Bearer k")
    assert {*first}.isdisjoint(other)
    monkeypatch.setattr(replicas, "MOST_KNOWN", 5)
    last = await prompt("c", 3)
    known = reported(two.replicas[0].known())
    assert known == {*other[:2], *last}, "of the prompt used longest ago the end is forgotten first"
    assert reported(two.replicas[1].known()) == frozenset()
    monkeypatch.setattr(replicas, "MOST_READ", 100)
    await prompt("d", 3)
    assert reported(two.replicas[0].known()) == known


async def test_what_one_replica_does_for_all_is_done_once_and_says_so(fleet: Made) -> None:
    two = fleet(200, 200)
    [(name, warning)] = (await two.ask("/slots/1")).headers
    assert name == "Warning"
    assert ONE_ALONE in warning
    assert two.apps[1].asked == []


def test_one_replica_alone_does_what_is_about_shared_files_or_about_itself() -> None:
    changes = [route for route in router.every() if route.changes]
    assert not any(route.lasting and (route.by_one or not route.changes) for route in router.every())
    assert {route.path for route in changes if route.by_one} == {
        *("/slots/{id}", "/api/pull", "/api/delete"),
        *(f"{base}/tool_servers/{kind}" for base in BASES for kind in ("call", "prompt", "resource")),
    }
    everywhere = {route.path for route in changes if not route.by_one}
    assert {"/models/load", "/v1/load_lora_adapter", "/reset_prefix_cache", "/v1/config/reload", "/sleep"} <= everywhere


async def test_other_requests_are_those_of_one_replica(fleet: Made) -> None:
    two = fleet(200, 200)
    assert (await two.ask("/chat")).headers == []
    assert two.apps[1].asked == []


async def test_outside_ray_there_is_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    app: Any = App()
    assert (await Replicas(app).handle(Request("POST", "/load"))).headers == []
    async with publishing(SimpleNamespace(services=SimpleNamespace(metrics=SimpleNamespace(enabled=True)))):  # type: ignore[arg-type]
        assert asyncio.all_tasks() == {asyncio.current_task()}


def test_the_text_of_metrics_is_read_with_its_labels() -> None:
    text = '# HELP a b\n# TYPE a counter\na 1\nx:b_bucket{le="+Inf",name="q\\"\\\\\\n,{}="} 2.5e-3\n'
    assert list(samples(text)) == [("a", {}, 1.0), ("x:b_bucket", {"le": "+Inf", "name": 'q"\\\n,{}='}, 0.0025)]


async def test_ray_gets_the_metrics_under_names_that_it_takes(fleet: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: dict[str, Any] = {}

    class Gauge:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            self.name, self.keys = name, tag_keys
            assert name not in set_to
            set_to[name] = ()

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert tuple(tags) == self.keys
            set_to[self.name] += ((value, *tags.values()),)

    fleet(200)
    made = ModuleType("ray.serve.metrics")
    made.Gauge = Gauge  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray.serve.metrics", made)

    text = b'vllm:x_bucket{le="1",model_name="m"} 3\nvllm:x_bucket{le="2",model_name="m"} 4\n'

    async def exposed(request: Request, services: Any) -> Response:
        return Response(200, [], text)

    monkeypatch.setattr(metrics.metrics, "handle", exposed)
    reporter = Reporter(SimpleNamespace(services=None))  # type: ignore[arg-type]
    await reporter.report()
    assert set_to == {"vllm_x_bucket": ((3.0, "1", "m"), (4.0, "2", "m"))}
    text = b'vllm:x_bucket{le="1",model_name="m"} 5\n'
    await reporter.report()
    await reporter.report()
    assert set_to["vllm_x_bucket"][2:] == ((5.0, "1", "m"), (0.0, "2", "m"), (5.0, "1", "m"))

"""KV cache events: a reader who follows them knows the content of the prefix cache."""

import json
import random
import socket
import sys
from array import array
from collections import deque

import httpx
import msgspec
import pytest
import zmq

from lean_ovms.errors import StartError
from lean_ovms.features.kv_events.child import install
from lean_ovms.features.kv_events.child.events import KvEvents
from lean_ovms.features.kv_events.child.publisher import (
    END,
    REPLAY_CLIENTS,
    REPLAY_TIMEOUT_S,
    REPLAYS,
    KvEventPublisher,
    KvEventsConfig,
    Replays,
    read_config,
)
from tests.engine.paged.harness import Params
from tests.engine.paged.network import FakeNetwork, HybridNetwork
from tests.engine.paged.test_engine import SIZE, engine, prompt, run

LONG_MS = 60_000


# vLLM 0.28's classes, with which its subscribers decode.
class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: "list[BlockStored | BlockRemoved | AllBlocksCleared]"
    data_parallel_rank: int | None = None


class Event(msgspec.Struct, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Event):
    pass


DECODER = msgspec.msgpack.Decoder(EventBatch)


class Router:
    """A router's knowledge of one server: for each cached block its salt, and all tokens up to its end."""

    def __init__(self):
        self.texts = {}
        self.events = []

    def publish(self, at, events):
        self.take(msgspec.msgpack.encode([at, events, 0]))

    def close(self):
        pass

    def take(self, payload):
        batch = DECODER.decode(payload)
        assert batch.ts > 0 == batch.data_parallel_rank
        for event in batch.events:
            self.events.append(event)
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    for key in event.block_hashes:
                        del self.texts[key]
                case _:
                    self.texts.clear()

    def _store(self, event):
        assert (event.medium, event.block_size) == ("GPU", SIZE)
        before = event.parent_block_hash
        text = (event.extra_keys[0],) if before is None else self.texts[before]
        for number, key in enumerate(event.block_hashes):
            text += tuple(event.token_ids[number * SIZE : (number + 1) * SIZE])
            assert key not in self.texts
            self.texts[key] = text


class Texts:
    """A Watcher that remembers the texts of all blocks that were ever in a prefix cache."""

    def __init__(self, made):
        self._blocks = made.blocks
        self._texts, self._parents = {}, {}
        made.blocks.watchers.append(self)

    def registered(self, serial, parent, tokens):
        self._parents[serial] = parent
        extra = tuple(one for one in (parent if isinstance(parent, tuple) else (parent,)) if one) or None
        before = self._texts[parent] if isinstance(parent, int) else (extra,)
        self._texts[serial] = before + tuple(array("q", tokens))

    def evicted(self, block, serial):
        pass

    def spoiled(self, serial):
        pass

    def clearing(self):
        pass

    def _found(self, serial):
        """Returns whether a prompt would find this block, together with all blocks before it."""
        return not isinstance(serial, int) or (self._blocks.has(serial) and self._found(self._parents[serial]))

    @property
    def cached(self):
        return {self._texts[serial] for serial in self._blocks._serials}

    @property
    def found(self):
        return {self._texts[serial] for serial in self._blocks._serials if self._found(serial)}


def publish(made, events):
    """Makes an engine publish what enters and leaves its prefix cache."""
    made.hooks.append(events)
    made.blocks.watchers.append(events)


def watched(publisher=None, adapter_name=str, **options):
    """Returns an engine, a router's knowledge of it, and the truth."""
    made, router = engine(**options), Router()
    publish(made, KvEvents(SIZE, publisher or router, adapter_name))
    return made, router, Texts(made)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FakeNetwork, HybridNetwork])
@pytest.mark.parametrize("seed", range(2))
def test_a_router_knows_what_is_cached(kind, seed):
    made, router, texts = watched(kind=kind, blocks=30, interval=16)
    dice = random.Random(seed)
    for number in range(40):
        asked = Params(max_tokens=dice.randrange(1, 30), cache_salt=dice.choice(["", "", "s"]))
        prompts = [prompt(dice.randrange(1, 60), seed=dice.randrange(3)) for _ in range(dice.randrange(1, 4))]
        run(made, *[made.add(one, asked) for one in prompts])
        if number == 20:
            made.reset_prefix_cache(disk=False)
            assert not router.texts
        assert texts.found <= set(router.texts.values()) <= texts.cached
        assert len(set(router.texts.values())) == len(router.texts)
    assert {type(event) for event in router.events} == {BlockStored, BlockRemoved, AllBlocksCleared}
    assert len(texts.found) > 5


def test_one_event_has_the_blocks_of_a_prompt_that_are_computed_in_one_step():
    made, router, _ = watched()
    run(made, made.add([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], Params(max_tokens=1, cache_salt="s")))
    run(made, made.add([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], Params(max_tokens=1, cache_salt="s")))
    first, second = router.events
    assert first.token_ids == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (first.parent_block_hash, first.extra_keys, len(first.block_hashes)) == (None, [("s",), None], 2)
    assert (second.token_ids, second.parent_block_hash) == ([9, 10, 11, 12], first.block_hashes[1])
    assert first.lora_name is second.lora_name is None


class Collected:
    """Receives events without an engine."""

    def __init__(self, adapter_name=str):
        self.router = Router()
        self.watcher = KvEvents(SIZE, self.router, adapter_name)

    def registered(self, *blocks):
        for serial, parent, ids in blocks:
            self.watcher.registered(serial, parent, array("q", ids).tobytes())
        self.watcher.changed()

    def evicted(self, *serials):
        for serial in serials:
            self.watcher.evicted(0, serial)
        self.watcher.changed()


ONE, TWO = [1, 2, 3, 4], [5, 6, 7, 8]


def test_servers_have_the_same_hashes_and_adapters_and_salts_others():
    known = []
    for _ in range(2):
        collected = Collected(adapter_name=str.upper)
        collected.registered((1, "", ONE), (2, 1, TWO), (3, "s", ONE), (4, ("a", ""), ONE), (5, 4, TWO), (6, "", TWO))
        known.append(list(collected.router.texts))
        names = [(event.lora_name, event.extra_keys) for event in collected.router.events]
        assert names == [(None, [None, None]), (None, [("s",)]), ("A", [("A",), ("A",)]), (None, [None])]
    assert known[0] == known[1]
    assert len(set(known[0])) == 6


def test_of_two_blocks_with_one_text_the_last_takes_it_along():
    collected = Collected()
    collected.registered((1, "", ONE), (2, 1, TWO))
    collected.evicted(1)
    collected.registered((3, "", ONE), (4, 3, TWO))  # block 2 could not be found, because the block before it was gone
    assert len(collected.router.texts) == 2
    collected.evicted(2)
    assert len(collected.router.texts) == 2
    collected.evicted(4, 3)
    assert not collected.router.texts


def test_images_and_what_is_behind_them_are_not_told():
    collected = Collected()
    collected.registered((1, "", ONE), (2, 1, [5, -1, -1, 6]), (3, 2, TWO))
    collected.evicted(3, 2, 1)
    stored, removed = collected.router.events
    assert stored.block_hashes == removed.block_hashes
    assert len(stored.block_hashes) == 1


# --- over ZeroMQ


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def publishing(tmp_path):
    """Returns publishing(**settings) -> a publisher, whose endpoints are the files "events" and "replay"."""
    made = []

    def make(**settings):
        endpoints = {"endpoint": f"ipc://{tmp_path}/events", "replay_endpoint": f"ipc://{tmp_path}/replay"}
        config = read_config(json.dumps({"enable_kv_cache_events": True, "topic": "kv", **endpoints, **settings}))
        made.append(KvEventPublisher(config))
        return made[-1]

    yield make
    for one in made:
        one.close()


def subscriber(context, tmp_path, publisher):
    """Returns a socket that is subscribed: the publisher sends until something arrives."""
    events = context.socket(zmq.SUB)
    events.setsockopt(zmq.RCVTIMEO, LONG_MS)
    events.subscribe("kv")
    events.connect(f"ipc://{tmp_path}/events")
    while not events.poll(10):
        publisher.publish(1.0, [])
    return events


def replayed(context, tmp_path, first):
    """Returns the stored events from a number on."""
    found = []
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.RCVTIMEO, LONG_MS)
        socket.connect(f"ipc://{tmp_path}/replay")
        socket.send_multipart((b"", first.to_bytes(8, "big")))
        while (message := socket.recv_multipart())[2] != END:
            empty, topic, number, payload = message
            assert (empty, topic) == (b"", b"kv")
            found.append((int.from_bytes(number, "big"), payload))
    assert message == [b"", b"", END, b""]
    return found


@pytest.mark.slow
def test_a_subscriber_rebuilds_what_is_cached(context, publishing, tmp_path):
    publisher, router = publishing(), Router()
    made, _, texts = watched(publisher, blocks=30)
    events = subscriber(context, tmp_path, publisher)
    for number in range(20):
        run(made, made.add(prompt(50, seed=number % 7), Params(max_tokens=6)))
    missed = replayed(context, tmp_path, 0)
    while len(missed) < publisher._sequence:  # a thread of the publisher sends them
        missed = replayed(context, tmp_path, 0)
    assert [number for number, _ in missed] == list(range(publisher._sequence))
    numbers = []
    while not numbers or numbers[-1] < publisher._sequence - 1:
        topic, number, payload = events.recv_multipart()
        assert topic == b"kv"
        numbers.append(int.from_bytes(number, "big"))
        assert missed[numbers[-1]] == (numbers[-1], payload)
        router.take(payload)
    assert numbers == list(range(numbers[0], publisher._sequence))
    assert texts.found <= set(router.texts.values()) <= texts.cached
    assert BlockRemoved in {type(event) for event in router.events}
    late = Router()
    for _, payload in replayed(context, tmp_path, 0):
        late.take(payload)
    assert late.texts == router.texts
    events.close()


class Pipes:
    """A socket whose clients have room for a number of messages, and count those that they receive."""

    def __init__(self, **rooms):
        self.rooms = {name.encode(): room for name, room in rooms.items()}
        self.got = {name: [] for name in self.rooms}

    def send_multipart(self, message, flags):
        client = message[0]
        if client not in self.rooms:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        if not self.rooms[client]:
            raise zmq.Again
        self.rooms[client] -= 1
        self.got[client].append(message[3])


def test_replays_take_no_more_memory_than_few_messages_for_few_clients():
    now = 0.0
    sent = deque([[number.to_bytes(8, "big"), b"x"] for number in range(100)])
    replays = Replays(b"kv", sent, lambda: now)
    assert not replays
    socket = Pipes(slow=3, quick=1000, stuck=1)
    for client in (b"slow", b"quick", b"stuck", b"gone", b"quick"):
        replays.add([client, b"", (90).to_bytes(8, "big")])
    for number in range(100):
        replays.add([b"x%d" % number, b"", (0).to_bytes(8, "big")])
        replays.add([b"slow", b"", (95).to_bytes(8, "big")])
    assert len(replays._waiting) == REPLAY_CLIENTS
    assert max(map(len, replays._waiting.values())) == REPLAYS
    for _ in range(3):
        replays.send(socket)
    sent.clear()  # what has begun is sent to its end
    ten = [number.to_bytes(8, "big") for number in range(90, 100)]
    assert socket.got[b"quick"] == [*ten, END, *ten, END]
    assert (socket.got[b"slow"], socket.got[b"stuck"]) == (ten[:3], ten[:1])
    socket.rooms[b"slow"], now = 1000, REPLAY_TIMEOUT_S - 1
    replays.send(socket)
    assert socket.got[b"slow"][:11] == [*ten, END]
    now += 1
    replays.send(socket)
    replays.send(socket)
    assert not replays._left
    assert socket.got[b"stuck"] == ten[:1]


@pytest.mark.slow
def test_so_many_batches_are_kept_and_wrong_requests_are_not_answered(context, publishing, tmp_path):
    publisher = publishing(buffer_steps=3)
    for number in range(9):
        publisher.publish(float(number), [])
    while [number for number, _ in replayed(context, tmp_path, 0)] != [6, 7, 8]:
        continue  # the thread has not sent all yet
    assert [number for number, _ in replayed(context, tmp_path, 7)] == [7, 8]
    with context.socket(zmq.DEALER) as wrong:
        wrong.connect(f"ipc://{tmp_path}/replay")
        wrong.send_multipart((b"", b"0"))
        wrong.send(b"x")
        assert len(replayed(context, tmp_path, 0)) == 3
        assert not wrong.poll(0)


class Full:
    """A queue that takes every second batch."""

    def __init__(self, queue):
        self._queue, self._takes, self.close = queue, False, queue.close

    def send_multipart(self, message, flags):
        self._takes = not self._takes
        if not self._takes:
            raise zmq.Again
        self._queue.send_multipart(message, flags)


@pytest.mark.slow
def test_what_cannot_be_sent_is_missing_in_the_numbers(context, publishing, tmp_path, caplog):
    publisher = publishing()
    publisher._queue = Full(publisher._queue)
    for number in range(7):
        publisher.publish(float(number), [])
    while [number for number, _ in replayed(context, tmp_path, 0)] != [0, 2, 4, 6]:
        continue  # the thread has not sent all yet
    assert publisher.dropped == 3
    assert caplog.text.count("some will be missing") == 1


@pytest.mark.slow
def test_the_queue_is_limited(publishing):
    publisher = publishing(max_queue_size=1)
    sent = 0
    while not publisher.dropped:  # sooner or later, the thread is slower than this one
        publisher.publish(1.0, [])
        sent += 1
    assert publisher._sequence == sent


def test_an_address_in_use_stops_the_start(publishing):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(StartError, match=rf"--kv_events_config: {address}: Address already in use"):
            publishing(replay_endpoint=address)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"topics": "a"}', "topics is unknown; the settings are enable_kv_cache_events, publisher, endpoint, "),
        ('{"hwm": 0}', "hwm cannot be 0"),
        ('{"buffer_steps": true}', "buffer_steps cannot be True"),
        ('{"topic": 5}', "topic cannot be 5"),
        ('{"topic": "\\ud800"}', r"topic cannot be '\\ud800'"),
        ('{"hwm": 2147483648}', "hwm cannot be 2147483648"),
        ('{"buffer_steps": 9223372036854775808}', "buffer_steps cannot be 9223372036854775808"),
        ('{"data_parallel_rank": -1}', "data_parallel_rank cannot be -1"),
        (
            '{"enable_kv_cache_events": true, "endpoint": "tcp://*:65535", "data_parallel_rank": 1}',
            r"tcp://\*:65535 has the port 65536 for engine 1, above 65535",
        ),
        (
            '{"enable_kv_cache_events": true, "endpoint": "tcp://*:*", "data_parallel_rank": 1}',
            r"tcp://\*:\* has no port, which must be unique for each replica",
        ),
        ('{"publisher": "kafka"}', "publisher must be null or zmq"),
        ('{"enable_kv_cache_events": true}', "needs the prefix cache"),
    ],
)
def test_settings_that_cannot_work_stop_the_start(text, message):
    with pytest.raises(StartError, match=f"--kv_events_config.*{message}"):
        install.publisher(text, caching="rank" in text)


@pytest.mark.parametrize(
    ("endpoint", "addresses"),
    [
        ("tcp://*:5557", ["tcp://*:5557", "tcp://*:5558", "tcp://*:5559"]),
        ("tcp://[::1]:5557", ["tcp://[::1]:5557", "tcp://[::1]:5558", "tcp://[::1]:5559"]),
        ("tcp://*:0", ["tcp://*:0"] * 3),
        ("ipc:///run/kv", ["ipc:///run/kv", "ipc:///run/kv_dp1", "ipc:///run/kv_dp2"]),
        ("", [""] * 3),
    ],
)
def test_each_replica_has_an_address_of_its_own_as_vllms_ranks_have(endpoint, addresses):
    configs = [KvEventsConfig(data_parallel_rank=number) for number in range(3)]
    assert [one.address(endpoint) for one in configs] == addresses


@pytest.mark.slow
def test_a_batch_says_which_replica_it_is_of(context, publishing, tmp_path):
    with context.socket(zmq.SUB) as events:
        events.setsockopt(zmq.RCVTIMEO, LONG_MS)
        events.subscribe("kv")
        publisher = publishing(data_parallel_rank=2)
        events.connect(f"ipc://{tmp_path}/events_dp2")
        while not events.poll(10):
            publisher.publish(1.0, [])
        assert DECODER.decode(events.recv_multipart()[2]).data_parallel_rank == 2


@pytest.mark.parametrize("text", ["", "{}", '{"enable_kv_cache_events": true, "publisher": "null"}'])
def test_without_a_publisher_nothing_is_sent(text):
    assert install.publisher(text, caching=True) is None


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lean_ovms.features.kv_events.child.publisher", None)
    with pytest.raises(StartError, match=r"--kv_events_config needs pip install"):
        install.publisher("{}", caching=True)


def subscribe(events, endpoint):
    events.setsockopt(zmq.RCVTIMEO, LONG_MS)
    events.subscribe("kv@m")
    events.connect(endpoint)


@pytest.mark.model
def test_a_server_publishes(context, tmp_path):
    """A router recognizes the blocks of a prompt by the ids that the render endpoint returns."""
    from tests.e2e.conftest import ANY_MODEL, start_process  # imports clients, which would delay fast tests

    settings = {"enable_kv_cache_events": True, "endpoint": f"ipc://{tmp_path}/events", "topic": "kv@m"}
    flags = ("--model_path", ANY_MODEL["model_path"], "--model_name", "m", "--kv_events_config", json.dumps(settings))
    with context.socket(zmq.SUB) as events, start_process(*flags) as process:
        subscribe(events, settings["endpoint"])
        process.wait_for("ready: m")
        body = {"messages": [{"role": "user", "content": "Tell me a long story. " * 9}], "max_tokens": 1}
        rendered = httpx.post(process.url + "/v1/chat/completions/render", json=body, timeout=300).json()
        while not events.poll(10):  # the subscription takes effect some time after connecting
            httpx.post(process.url + "/reset_prefix_cache", timeout=300).raise_for_status()
        generated = httpx.post(process.url + "/inference/v1/generate", json=rendered, timeout=300).json()
        stored = []
        while not stored:
            _, _, payload = events.recv_multipart()
            stored = [event for event in DECODER.decode(payload).events if isinstance(event, BlockStored)]
        ids = rendered["token_ids"]
        assert stored[0].token_ids == ids[: len(stored[0].token_ids)]
        assert len(stored[0].token_ids) == len(ids) // stored[0].block_size * stored[0].block_size > 0
        assert generated["usage"]["prompt_tokens"] == len(ids)
        assert process.stop() == 0

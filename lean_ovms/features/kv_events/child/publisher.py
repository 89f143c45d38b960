"""Publishes KV cache events over ZeroMQ, as vLLM does: on a PUB socket, and on a ROUTER socket that repeats messages.

A message has a topic, a sequence number (8 bytes) and a batch (MessagePack). A client that has missed messages asks for
them by the first number, and gets an end mark after the last one. A message that cannot be sent is dropped, so that its
number is missing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import msgspec
import zmq

from ....config.options import read_object
from ....errors import StartError

logger = logging.getLogger(__name__)

OPTION = "kv_events_config"
RANK = "data_parallel_rank"
QUEUE = "inproc://batches"
SEQUENCE_BYTES = 8
END = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)
Message = tuple[bytes, ...]
REPLAY_CLIENTS, REPLAYS = 16, 4
"""Clients to which batches are repeated at once, and requests of one that wait; more are not answered."""
REPLAY_HWM = 256
"""Messages that wait for a client to read them."""
REPLAY_PAUSE_MS = 20
"""Milliseconds between two checks whether a client has read."""
REPLAY_TIMEOUT_S = 30.0
"""Seconds without reading anything after which a client's replay ends."""
MOST = 2**31 - 1
"""The largest number that a setting may have, which is ZeroMQ's."""
MOST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventsConfig:
    """The settings of events, with vLLM's names."""

    enable_kv_cache_events: bool = False
    """Whether events are published."""
    publisher: str = ""
    """The way of publishing: "zmq" or "" for ZeroMQ, "null" for none."""
    endpoint: str = "tcp://*:5557"
    """The address of the socket with the events."""
    replay_endpoint: str = ""
    """The address of the socket that repeats batches; "" if there is none."""
    buffer_steps: int = 10_000
    """The number of batches that can be repeated."""
    hwm: int = 100_000
    """The most batches that wait for one slow subscriber."""
    max_queue_size: int = 100_000
    """The most batches that wait for the thread that sends them."""
    topic: str = ""
    """The first part of each message, by which routers choose servers."""
    data_parallel_rank: int = 0
    """The number of the engine among several of one model, which is added to the port of each address."""

    def address(self, endpoint: str) -> str:
        """Returns the address of this engine, given that of the first one. Raises StartError."""
        rank = self.data_parallel_rank
        if not endpoint.startswith("tcp://"):
            return f"{endpoint}_dp{rank}" if rank and endpoint else endpoint
        host, _, port = endpoint.rpartition(":")
        if not port.isdecimal():
            if not rank:
                return endpoint
            raise StartError(f"--{OPTION}: {endpoint} has no port, which must be unique for each replica")
        own = int(port) + rank if int(port) else 0
        if own > MOST_PORT:  # ZeroMQ would use the number's last 16 bits
            raise StartError(f"--{OPTION}: {endpoint} has the port {own} for engine {rank}, above {MOST_PORT}")
        return f"{host}:{own}"


def read_config(text: str) -> KvEventsConfig:
    """Parses the value of the option. Raises StartError."""
    given = {name: value for name, value in read_object(OPTION, text).items() if value is not None}
    kinds = {one.name: type(one.default) for one in fields(KvEventsConfig)}
    for name, value in given.items():
        if name not in kinds:
            raise StartError(f"--{OPTION}: {name} is unknown; the settings are {', '.join(kinds)}")
        wrong_number = type(value) is int and not (name != RANK) <= value <= MOST
        if type(value) is not kinds[name] or wrong_number or (isinstance(value, str) and not value.isprintable()):
            raise StartError(f"--{OPTION}: {name} cannot be {value!r}")
    config = KvEventsConfig(**given)
    if config.publisher not in ("", "null", "zmq"):
        raise StartError(f"--{OPTION}: publisher must be null or zmq")
    return config


class KvEventPublisher:
    """Sends batches. A thread owns the sockets, and gets batches through a queue of limited size."""

    def __init__(self, config: KvEventsConfig) -> None:
        """Opens the sockets and starts the thread. Raises StartError for an endpoint that cannot be used."""
        self._config = config
        endpoint, replay_endpoint = config.address(config.endpoint), config.address(config.replay_endpoint)
        self._context = zmq.Context()
        self._queue = self._context.socket(zmq.PUSH)
        self._queue.set_hwm(config.max_queue_size)
        self._queue.bind(QUEUE)
        self._sockets = [self._context.socket(zmq.PULL), self._context.socket(zmq.PUB)]
        self._sockets[0].connect(QUEUE)
        self._sockets[1].set_hwm(config.hwm)
        self._open(self._sockets[1], endpoint)
        if replay_endpoint:
            self._sockets.append(self._context.socket(zmq.ROUTER))
            self._sockets[2].set_hwm(REPLAY_HWM)
            # Raises an error if a client does not read or has disconnected.
            self._sockets[2].setsockopt(zmq.ROUTER_MANDATORY, 1)
            self._open(self._sockets[2], replay_endpoint)
        self._sequence = 0
        self.dropped = 0
        logger.info("KV events: %s, topic %r", endpoint, config.topic)
        self._thread = threading.Thread(target=self._run, daemon=True, name="kv-events")
        self._thread.start()

    def _open(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        """Binds a socket. As in vLLM, the socket of events connects instead if its address is that of a router."""
        own = any(part in endpoint for part in ("*", "::", "ipc://", "inproc://"))
        try:
            if own or socket.type == zmq.ROUTER:
                socket.bind(endpoint)
            else:
                socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise StartError(f"--{OPTION}: {endpoint}: {error.strerror}") from None

    def publish(self, at: float, events: list[Any]) -> None:
        """Queues a batch of events, in their order, with its Unix time."""
        number = self._sequence.to_bytes(SEQUENCE_BYTES, "big")
        self._sequence += 1
        batch = msgspec.msgpack.encode([at, events, self._config.data_parallel_rank])
        try:
            self._queue.send_multipart((number, batch), zmq.NOBLOCK)
        except zmq.Again:
            if not self.dropped:
                logger.warning("KV events arise faster than they can be sent; some will be missing from now on")
            self.dropped += 1

    def close(self) -> None:
        """Ends the thread. Waiting batches are not sent."""
        self._queue.close(linger=0)
        self._context.term()  # wakes the thread, and returns when it has closed its sockets

    def _run(self) -> None:
        queue, events, *replay = self._sockets
        topic, sent = self._config.topic.encode(), deque[list[bytes]](maxlen=self._config.buffer_steps)
        poller, replays = zmq.Poller(), Replays(topic, sent)
        for socket in (queue, *replay):
            poller.register(socket, zmq.POLLIN)
        try:
            while True:
                for socket, _ in poller.poll(REPLAY_PAUSE_MS if replays else None):
                    message = socket.recv_multipart()
                    if socket is queue:
                        events.send_multipart((topic, *message))
                        sent.append(message)
                    else:
                        replays.add(message)
                for socket in replay:
                    replays.send(socket)
        except zmq.ContextTerminated:
            pass
        finally:
            for socket in self._sockets:
                socket.close(linger=0)


class Replays:
    """Repeats batches for the clients that ask for them.

    Each client gets them as fast as it reads, and few clients are served at once, so that the memory is limited.
    """

    def __init__(self, topic: bytes, sent: deque[list[bytes]], clock: Callable[[], float] = time.monotonic) -> None:
        """Begins without any client.

        Args:
            topic: The first part of each message.
            sent: The batches that can be repeated, oldest first, with their numbers. The publisher adds to them.
            clock: Returns the time in seconds.
        """
        self._topic = topic
        self._sent = sent
        self._clock = clock
        self._waiting: dict[bytes, deque[bytes]] = {}  # the first sequence numbers that each client requested
        # For each client, the messages to come, the next one, and since when it waits.
        self._left: dict[bytes, tuple[Iterator[Message], Message, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting or self._left)

    def add(self, request: list[bytes]) -> None:
        """Adds a request for the kept batches from a sequence number on, and the end mark."""
        if len(request) != 3 or len(request[2]) != SEQUENCE_BYTES:
            logger.warning("invalid request on the replay endpoint of KV events")
            return
        client, _, first = request
        clients = self._waiting.keys() | self._left.keys() | {client}
        asked = self._waiting.setdefault(client, deque())
        if len(clients) > REPLAY_CLIENTS or len(asked) >= REPLAYS:
            logger.warning("too many requests on the replay endpoint of KV events; one was dropped")
            if not asked:
                del self._waiting[client]
            return
        asked.append(first)

    def send(self, socket: zmq.Socket[bytes]) -> None:
        """Sends requested batches to clients that can receive them without blocking."""
        for client in [*self._waiting, *self._left]:
            if client not in self._left and client in self._waiting:
                self._begin(client)
            if client in self._left:
                self._go_on(socket, client)

    def _begin(self, client: bytes) -> None:
        first = self._waiting[client].popleft()
        if not self._waiting[client]:
            del self._waiting[client]
        # Compares correctly, because the numbers are big-endian.
        kept = [message for message in self._sent if message[0] >= first]
        messages = chain(((client, b"", self._topic, *one) for one in kept), [(client, b"", b"", END, b"")])
        self._left[client] = messages, next(messages), self._clock()

    def _go_on(self, socket: zmq.Socket[bytes], client: bytes) -> None:
        messages, following, since = self._left.pop(client)
        try:
            while True:
                socket.send_multipart(following, zmq.NOBLOCK)
                since = self._clock()
                following = next(messages)
        except StopIteration:
            return
        except zmq.Again:
            if self._clock() < since + REPLAY_TIMEOUT_S:
                self._left[client] = messages, following, since
                return
            logger.warning("a client on the replay endpoint of KV events does not read its replies")
        except zmq.ContextTerminated:
            raise
        except zmq.ZMQError:  # the client has disconnected
            pass
        self._waiting.pop(client, None)

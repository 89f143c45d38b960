"""KV cache events over ZeroMQ, as vLLM publishes them: a PUB socket, and a ROUTER socket that repeats what was sent.

A message is topic, sequence number (8 bytes) and batch (MessagePack). Who has missed some asks for them by the first
number, and gets an end mark behind the last. What cannot be sent is dropped: a number is missing then.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, fields
from typing import Any

import msgspec
import zmq

from ...config.options import read_object
from ...errors import StartError

logger = logging.getLogger(__name__)

OPTION = "kv_events_config"
QUEUE = "inproc://batches"
SEQUENCE_BYTES = 8
END = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventsConfig:
    """vLLM's. buffer_steps: batches that can be repeated. hwm: batches that wait for one slow subscriber.
    max_queue_size: batches that wait for the thread that sends them."""

    enable_kv_cache_events: bool = False
    publisher: str = ""
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str = ""
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""


def read_config(text: str) -> KvEventsConfig:
    """The value of the option. Raises StartError."""
    given = {name: value for name, value in read_object(OPTION, text).items() if value is not None}
    kinds = {one.name: type(one.default) for one in fields(KvEventsConfig)}
    for name, value in given.items():
        if name not in kinds:
            raise StartError(f"--{OPTION}: {name} is none of {', '.join(kinds)}")
        if type(value) is not kinds[name] or (type(value) is int and value < 1):
            raise StartError(f"--{OPTION}: {name} cannot be {value!r}")
    config = KvEventsConfig(**given)
    if config.publisher not in ("", "null", "zmq"):
        raise StartError(f"--{OPTION}: publisher is null or zmq")
    return config


class KvEventPublisher:
    """Sends batches. A thread owns the sockets, and gets batches through a queue of limited size."""

    def __init__(self, config: KvEventsConfig) -> None:
        """Raises StartError for an endpoint that cannot be used."""
        self._config = config
        self._context = zmq.Context()
        self._queue = self._context.socket(zmq.PUSH)
        self._queue.set_hwm(config.max_queue_size)
        self._queue.bind(QUEUE)
        self._sockets = [self._context.socket(zmq.PULL), self._context.socket(zmq.PUB)]
        self._sockets[0].connect(QUEUE)
        self._sockets[1].set_hwm(config.hwm)
        self._open(self._sockets[1], config.endpoint)
        if config.replay_endpoint:
            self._sockets.append(self._context.socket(zmq.ROUTER))
            self._sockets[2].set_hwm(config.buffer_steps + 1)  # one answer
            self._open(self._sockets[2], config.replay_endpoint)
        self._sequence = 0
        self.dropped = 0
        logger.info("KV events: %s, topic %r", config.endpoint, config.topic)
        self._thread = threading.Thread(target=self._run, daemon=True, name="kv-events")
        self._thread.start()

    def _open(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        """Binds a socket; as in vLLM one of events connects to a router where the address is not one of its own."""
        own = any(part in endpoint for part in ("*", "::", "ipc://", "inproc://"))
        try:
            if own or socket.type == zmq.ROUTER:
                socket.bind(endpoint)
            else:
                socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise StartError(f"--{OPTION}: {endpoint}: {error.strerror}") from None

    def publish(self, batch: Any) -> None:
        """Sends a batch soon."""
        number = self._sequence.to_bytes(SEQUENCE_BYTES, "big")
        self._sequence += 1
        try:
            self._queue.send_multipart((number, msgspec.msgpack.encode(batch)), zmq.NOBLOCK)
        except zmq.Again:
            if not self.dropped:
                logger.warning("KV events come faster than they can be sent: numbers are missing from now on")
            self.dropped += 1

    def close(self) -> None:
        """Ends the thread; what waits is not sent."""
        self._queue.close(linger=0)
        self._context.term()  # once the thread has closed its sockets, for which this wakes it

    def _run(self) -> None:
        queue, events, *replay = self._sockets
        topic, sent = self._config.topic.encode(), deque[list[bytes]](maxlen=self._config.buffer_steps)
        poller = zmq.Poller()
        for socket in (queue, *replay):
            poller.register(socket, zmq.POLLIN)
        try:
            while True:
                for socket, _ in poller.poll():
                    message = socket.recv_multipart()
                    if socket is queue:
                        events.send_multipart((topic, *message))
                        sent.append(message)
                    else:
                        _repeat(socket, message, topic, sent)
        except zmq.ContextTerminated:
            pass
        finally:
            for socket in self._sockets:
                socket.close(linger=0)


def _repeat(socket: zmq.Socket[bytes], request: list[bytes], topic: bytes, sent: deque[list[bytes]]) -> None:
    """Sends what was sent from a number on, as far as it is kept, and the end mark."""
    if len(request) != 3 or len(request[2]) != SEQUENCE_BYTES:
        logger.warning("a request on the replay endpoint of KV events is not valid")
        return
    client, _, first = request
    for message in sent:
        if message[0] >= first:  # big-endian numbers
            socket.send_multipart((client, b"", topic, *message))
    socket.send_multipart((client, b"", b"", END, b""))

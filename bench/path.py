"""Measures the front end without sockets and without an engine: from requests and frames to the bytes for clients.

It leaves out the kernel (a read per request, a write per chunk) and the engine process. This is the least noisy measure
of the front end's own cost on a busy machine: the fastest of many rounds in one process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import uvloop

from bench import client
from bench.work import prompts
from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.engine import protocol
from lean_ovms.engine.client.engine import EngineClient
from lean_ovms.features.scripted_engine.child.backend import ScriptedEngine
from lean_ovms.models.text_model import TextModel
from lean_ovms.transports.http11.connection import HttpConnection
from lean_ovms.transports.http11.server import Server
from lean_ovms.types.engine import ModelInfo

CHAT = "/v3/chat/completions"
WORD = [ord(letter) for letter in "w"]


class Peer:
    """A transport, or the connection to an engine process, that counts writes, and keeps the last one."""

    alive = False

    def __init__(self) -> None:
        self.writes = 0
        self.data = b""

    def write(self, data: bytes) -> None:
        """Counts a write."""
        self.writes += 1
        self.data = data

    def get_write_buffer_size(self) -> int:
        """Returns 0, because nothing is buffered."""
        return 0

    def get_extra_info(self, name: str) -> None:
        """Returns None, because there is no socket."""

    def is_closing(self) -> bool:
        """Returns False, because the connection stays open."""
        return False


class LocalEngine(EngineClient):
    """An engine client without an engine process; the benchmark delivers the records."""

    async def start(self) -> ModelInfo:
        """Is ready at once."""
        scripted = ScriptedEngine()
        self.info, self.vocabulary = scripted.info, scripted.vocabulary
        self._child = Peer()  # type: ignore[assignment]
        self.state = "ready"
        return self.info


class Path:
    """The front end of one model, with connections."""

    def __init__(self) -> None:
        config = Config(fake_engine=True, model_name="demo", access_log=False, reasoning_parser="none")
        self._engine = LocalEngine(config)
        self._model = TextModel(config, self._engine)
        app = App(config, [self._model])
        self._server = Server(config, app.handle, app.is_vital, app.check_head)
        self._sent = 0

    async def chunks(self, streams: int, steps: int, rounds: int) -> float:
        """Returns the least time per chunk in us, while each of `streams` streams gets one chunk per step."""
        await self._model.load()
        loop = asyncio.get_running_loop()
        peers, ids = [], []
        for text in prompts(1, streams, 20):
            peer, connection = self._connect(loop)
            await self._ask(connection, self.payload(text))
            peers.append(peer)
            ids.append(self._sent)
        self._deliver([protocol.Accepted(number, 10) for number in ids])
        await asyncio.sleep(0.01)  # some endpoints send an event before the first token
        decoder = protocol.Decoder()
        frame = protocol.encode([protocol.Tokens(number, 0, WORD, None, None) for number in ids])
        best = float("inf")
        for _ in range(rounds):
            before, began = sum(peer.writes for peer in peers), time.thread_time()
            for _ in range(steps):
                self._engine._deliver(decoder.feed(frame))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            took = time.thread_time() - began
            done = sum(peer.writes for peer in peers) - before
            assert done == steps * streams, (done, steps, streams)
            best = min(best, took / done * 1e6)
        self._deliver([protocol.Tokens(number, 0, WORD, None, "length") for number in ids])
        await asyncio.sleep(0.01)
        return best

    async def requests(self, count: int, rounds: int) -> float:
        """Returns the least time of a request of one token in us."""
        await self._model.load()
        loop = asyncio.get_running_loop()
        best = float("inf")
        peer, connection = self._connect(loop)
        for number in range(rounds):
            texts = prompts(number, count, 40)
            began = time.thread_time()
            for text in texts:
                await self._ask(connection, self.payload(text))
                peer.data = b""
                self._deliver([protocol.Accepted(self._sent, 10)])
                self._deliver([protocol.Tokens(self._sent, 0, WORD, None, "length")])
                await asyncio.sleep(0)
                while not peer.data.endswith(b"0\r\n\r\n"):  # noqa: ASYNC110 - what is timed is turns of the loop
                    await asyncio.sleep(0)
            best = min(best, (time.thread_time() - began) / count * 1e6)
        return best

    def _connect(self, loop: asyncio.AbstractEventLoop) -> tuple[Peer, HttpConnection]:
        peer, connection = Peer(), HttpConnection(self._server, loop)
        connection.connection_made(peer)  # type: ignore[arg-type]
        return peer, connection

    def payload(self, text: str) -> bytes:
        """Returns a request as bytes."""
        return client.payload(CHAT, client.chat(text, 64, {"model": "demo"}))

    async def _ask(self, connection: HttpConnection, request: bytes) -> None:
        before = self._engine._child.writes  # type: ignore[union-attr]
        connection.data_received(request)
        while self._engine._child.writes == before:  # type: ignore[union-attr]  # noqa: ASYNC110
            await asyncio.sleep(0)
        self._sent += 1

    def _deliver(self, records: Sequence[protocol.Record]) -> None:
        self._engine._deliver(protocol.Decoder().feed(protocol.encode(records)))


def chunk_us(streams: int, rounds: int) -> float:
    """Returns the front end's time per chunk in us, without the kernel's part."""
    return uvloop.run(Path().chunks(streams, max(10, 100 // streams), rounds))


def request_us(rounds: int) -> float:
    """Returns the front end's time per request in us, without the kernel's part."""
    return uvloop.run(Path().requests(5, rounds))

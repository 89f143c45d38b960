"""The engine's speech task with its scripted recognizer in this process, audio for it, and a client of a session."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import orjson

from lean_ovms.api import router
from lean_ovms.api.app import App
from lean_ovms.composition import compose
from lean_ovms.config import Config
from lean_ovms.engine import protocol
from lean_ovms.errors import from_wire
from lean_ovms.features.embed.websocket import Closed, LocalWebSocket, connect
from lean_ovms.features.speech.child.fake_recognizer import FakeRecognizer
from lean_ovms.features.speech.child.task import SpeechTask
from lean_ovms.features.speech.model import SpeechModel
from lean_ovms.features.speech.params import TranscribeParams
from lean_ovms.features.speech.records import Audio
from lean_ovms.features.speech.reply import SpeechReply
from lean_ovms.features.websocket.types import Close
from lean_ovms.types import Request
from tests.engine_client_fakes import FakeTaskClient

for route in compose().routes:
    if route.module == "lean_ovms.features.realtime.api.endpoint":
        router.imported(route)

APPEND, COMMIT, CLEAR = (f"input_audio_buffer.{verb}" for verb in ("append", "commit", "clear"))


def tone(seconds: float, peak: float, rate: int = 16000) -> bytes:
    """Returns sound that the scripted recognizer reads as a tenth of its peak, for each half second."""
    size, period = int(seconds * rate), rate // 100  # of three waves
    samples = (int(32767 * peak * math.sin(2 * math.pi * 300 * i / rate)) for i in range(period))
    wave = b"".join(sample.to_bytes(2, "little", signed=True) for sample in samples)
    return (wave * (size // period + 1))[: 2 * size]


def silence(seconds: float, rate: int = 16000) -> bytes:
    return bytes(2 * int(seconds * rate))


class FakeSpeechEngine(FakeTaskClient):
    """The parts of an engine that a SpeechModel needs.

    While `gate` is cleared, nothing is transcribed. `asked` has the parameters of each request, `open` the requests
    that are not closed, `heard` is the number of blocks of audio that have come.
    """

    def __init__(self, config: Config) -> None:
        recognizer = FakeRecognizer(config)
        super().__init__(SpeechTask(recognizer, 64, 64), recognizer.info, recognizer.vocabulary)
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[TranscribeParams] = []
        self.open: dict[int, SpeechReply] = {}
        self.heard = 0
        self._pump: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        await super().stop()
        if self._pump is not None:
            await self._pump

    def open_lasting(self, make: partial[SpeechReply]) -> SpeechReply:
        self.refuse()
        self.asked.append(make.keywords["params"])
        number = len(self.asked)
        reply = self.open[number] = make(number, self._send, lambda number: self.open.pop(number, None))
        return reply

    def _send(self, record: protocol.Record) -> None:
        self.heard += isinstance(record, Audio)
        self.task.handle(record)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        """Runs steps of the worker's loop, and passes its records to the requests."""
        while True:
            await asyncio.sleep(0)
            if self.gate.is_set() and not self.task.idle:
                self.task.admit()
                self.task.step()
            records, self.task.out = self.task.out, []
            for record in records:
                self._deliver(record)
            if not records and (self.task.idle or not self.gate.is_set()):
                return

    async def caught_up(self) -> None:
        """Waits until everything that was sent is processed."""
        for _ in range(50):
            await asyncio.sleep(0)

    def let_go(self) -> None:
        """Opens the gate."""
        self.gate.set()
        self._pump = asyncio.ensure_future(self._work())

    def _deliver(self, record: Any) -> None:
        reply = self.open.get(record.id)
        if reply is not None and isinstance(record, (protocol.Failed, protocol.Refused)):
            reply.fail(from_wire(record.error))
        elif reply is not None:
            reply.receive(record)


async def speech_app(*names: str, **options: Any) -> tuple[App, FakeSpeechEngine]:
    """Returns an app with speech models of these names, by default "w", and the engine of the last one."""
    models = []
    for name in names or ("w",):
        config = Config(
            **{"fake_engine": True, "task": "speech2text", "access_log": False, **options, "model_name": name}
        )
        engine = FakeSpeechEngine(config)
        model = SpeechModel(config, engine)  # type: ignore[arg-type]
        await model.load()
        models.append(model)
    return App(config, models), engine


class Client:
    """A client of one session. `created` is the first event."""

    def __init__(self, websocket: LocalWebSocket) -> None:
        self.websocket = websocket
        self.created: dict[str, Any] = {}

    async def send(self, kind: str, **fields: Any) -> None:
        await self.websocket.send(orjson.dumps({"type": kind, **fields}).decode())

    async def append(self, *audio: bytes) -> None:
        for block in audio:
            await self.send(APPEND, audio=base64.b64encode(block).decode())

    async def next(self) -> Any:
        return orjson.loads(await asyncio.wait_for(self.websocket.receive(), 60))

    async def until(self, kind: str) -> list[Any]:
        """Returns the events up to the next one of this type."""
        events = [await self.next()]
        while events[-1]["type"] != kind:
            events.append(await self.next())
        return events

    async def closed(self) -> Close:
        """Returns how the server closes the session, whatever it sends before."""
        while True:
            try:
                await self.next()
            except Closed as closed:
                return closed.close


@asynccontextmanager
async def session(app: App, path: str = "/v1/realtime", **headers: str) -> AsyncIterator[Client]:
    """Opens a session, and reads its first event."""
    plain, _, query = path.partition("?")
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with connect(app.handle, Request("GET", plain, query, sent, b"", "in-process")) as websocket:
        client = Client(websocket)
        client.created = await client.next()
        yield client

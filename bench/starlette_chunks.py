"""The reference of `front`: Starlette on uvicorn writing the chunks that our front end writes.

Tokens come from one timer in this very process; a server that reads them from an engine, parses them and builds its
chunks from models has more to do. As lean as that gets with "fast": uvloop, httptools, a chunk is a dict through
orjson. With "plain" as `pip install uvicorn starlette` gives it: asyncio's loop, h11, json.
python -m bench.starlette_chunks PORT STEP_SECONDS fast|plain
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from bench.front import ANSWER


class Ticker:
    """A step of the engine, for all streams at once."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._waiting: list[asyncio.Future[None]] = []
        self._running: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Until the next step."""
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._step_s)
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)


def application(step_s: float, dumps: Callable[[object], bytes]) -> Starlette:
    """POST any body with max_tokens: that many chunks, one a step."""
    ticker = Ticker(step_s)

    async def chat(request: Request) -> StreamingResponse:
        body = orjson.loads(await request.body())
        return StreamingResponse(chunks(body["max_tokens"]), media_type="text/event-stream")

    async def chunks(count: int) -> AsyncIterator[bytes]:
        envelope = {"id": "chatcmpl-" + "0" * 24, "created": int(time.time()), "model": "demo"}
        for number in range(count):
            await ticker.wait()
            choice = {"index": 0, "logprobs": None, "delta": {"content": ANSWER[number % len(ANSWER)]}}
            chunk = {
                **envelope,
                "choices": [{**choice, "finish_reason": None}],
                "object": "chat.completion.chunk",
                "system_fingerprint": "starlette",
                "usage": None,
            }
            yield b"data: " + dumps(chunk) + b"\n\n"
        yield b"data: [DONE]\n\n"

    async def health(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    routes = [Route("/v3/chat/completions", chat, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes)


if __name__ == "__main__":
    port, step_s, kind = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    fast = kind == "fast"
    app = application(step_s, orjson.dumps if fast else lambda chunk: json.dumps(chunk).encode())
    how = {"loop": "uvloop", "http": "httptools"} if fast else {"loop": "asyncio", "http": "h11"}
    uvicorn.run(app, port=port, log_level="error", access_log=False, **how)

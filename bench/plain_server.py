"""A typical server without this project: FastAPI, uvicorn, and openvino_genai's LLMPipeline with a streamer callback.

It is written as tutorials write it: one pipeline, a lock (LLMPipeline runs one request at a time), generate() in a
thread, text pieces passed to the event loop, chunks as pydantic models. It is only a yardstick for `compare`, without
stop strings, tools or proper error handling.

    python -m bench.plain_server MODEL PORT
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator

import openvino_genai as genai
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel


class Message(BaseModel):
    role: str
    content: str


class ChatRequest(BaseModel):
    model: str
    messages: list[Message]
    max_tokens: int = 128
    temperature: float = 1.0
    ignore_eos: bool = False


class Delta(BaseModel):
    role: str | None = None
    content: str | None = None


class Choice(BaseModel):
    index: int = 0
    delta: Delta
    finish_reason: str | None = None


class Chunk(BaseModel):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[Choice]


def application(model: str) -> FastAPI:
    """Returns the app with its pipeline."""
    app = FastAPI()
    pipe = genai.LLMPipeline(model, "CPU")
    tokenizer = pipe.get_tokenizer()
    turn = asyncio.Lock()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/chat/completions")
    async def chat(request: ChatRequest) -> StreamingResponse:
        return StreamingResponse(stream(request), media_type="text/event-stream")

    async def stream(request: ChatRequest) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        config = pipe.get_generation_config()
        config.max_new_tokens = request.max_tokens
        config.ignore_eos = request.ignore_eos
        config.do_sample = request.temperature > 0
        config.apply_chat_template = False
        messages = [message.model_dump() for message in request.messages]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        counts = {}

        def work() -> None:
            def take(piece: str) -> genai.StreamingStatus:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
                return genai.StreamingStatus.RUNNING

            result = pipe.generate([prompt], config, take)
            counts["prompt_tokens"] = result.perf_metrics.get_num_input_tokens()
            counts["completion_tokens"] = result.perf_metrics.get_num_generated_tokens()
            loop.call_soon_threadsafe(pieces.put_nowait, None)

        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": request.model}
        async with turn:
            done = loop.run_in_executor(None, work)
            yield event(Chunk(**head, choices=[Choice(delta=Delta(role="assistant"))]))
            while (piece := await pieces.get()) is not None:
                if piece:
                    yield event(Chunk(**head, choices=[Choice(delta=Delta(content=piece))]))
            await done
        yield event(Chunk(**head, choices=[Choice(delta=Delta(), finish_reason="stop")]))
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': counts})}\n\n"
        yield "data: [DONE]\n\n"

    return app


def event(chunk: Chunk) -> str:
    """Formats a server-sent event."""
    return f"data: {chunk.model_dump_json()}\n\n"


if __name__ == "__main__":
    uvicorn.run(application(sys.argv[1]), port=int(sys.argv[2]), log_level="error", access_log=False)

"""The usual server of embeddings: FastAPI, uvicorn, and sentence-transformers' encode in a thread.

Made as its tutorials make it: one model, a lock, OpenAI's answer as pydantic models; base64 because clients ask for it.
A yardstick for `embed --rival`; it is no product. python -m bench.sentence_server MODEL PORT, where MODEL has the torch
weights.
"""

from __future__ import annotations

import asyncio
import base64
import sys

import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer


class EmbeddingRequest(BaseModel):
    model: str
    input: str | list[str]
    encoding_format: str = "float"


class Embedding(BaseModel):
    object: str = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    object: str = "list"
    data: list[Embedding]
    model: str
    usage: Usage


def make_app(model: SentenceTransformer) -> FastAPI:
    """The server of this model."""
    app = FastAPI()
    lock = asyncio.Lock()

    @app.get("/health")
    async def health() -> None:
        return None

    @app.post("/v1/embeddings")
    async def embeddings(request: EmbeddingRequest) -> EmbeddingList:
        texts = [request.input] if isinstance(request.input, str) else request.input
        async with lock:
            vectors = await asyncio.to_thread(model.encode, texts, normalize_embeddings=True)
        tokens = sum(map(len, model.tokenizer(texts, truncation=True)["input_ids"]))
        data = [
            Embedding(index=index, embedding=written(vector, request.encoding_format))
            for index, vector in enumerate(vectors)
        ]
        usage = Usage(prompt_tokens=tokens, total_tokens=tokens)
        return EmbeddingList(data=data, model=request.model, usage=usage)

    return app


def written(vector: np.ndarray, encoding: str) -> list[float] | str:
    """In the form that the request asks for."""
    return base64.b64encode(vector.tobytes()).decode() if encoding == "base64" else vector.tolist()


if __name__ == "__main__":
    uvicorn.run(
        make_app(SentenceTransformer(sys.argv[1], device="cpu")),
        port=int(sys.argv[2]),
        log_level="warning",
        timeout_keep_alive=600,
    )

"""A fake pooling model for --fake_engine, whose results are computed from the bytes of a text.

A text's vector is the sum of a fixed pseudo-random vector for each byte: equal texts have equal vectors, and similar
texts have close ones. The vocabulary is that of fake_tokenizer. Some special tokens make the model fail, for tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from ....config import EngineConfig
from ....engine.generation import fake_tokenizer as tokenizer
from ....types.engine import ModelInfo
from ..feature import PoolingOptions
from ..types import CLASSIFY, EMBED, IN_TEMPLATE, SCORE, SPARSE, TOKEN_CLASSIFY, TOKEN_EMBED, VECTORS, PoolingInfo
from .pooler import Array, Batch, PoolingVision, Prompt, Template

WINDOW = 512
DIMENSIONS = 16
END = tokenizer.IDS["<|end|>"]
CLASSES = ["negative", "neutral", "positive"]
TOKEN_CLASSES = ["O", "B", "I"]
_KINDS = {"embeddings": EMBED, "rerank": SCORE, "classify": CLASSIFY, "token_classify": TOKEN_CLASSIFY}
_TABLE = np.sin(np.outer(np.arange(1, tokenizer.VOCAB_SIZE + 1), np.arange(1, DIMENSIONS + 1)) * 12.9898)


class FakePooler:
    """A Pooler without a model. A text becomes <bos> text <eos>, and a pair <bos> query <|end|> document <eos>."""

    def __init__(self, config: EngineConfig) -> None:
        self.vocabulary = tokenizer.vocabulary()
        self.template = Template(
            single=((tokenizer.BOS,), (tokenizer.EOS,)),
            pair=((tokenizer.BOS,), (END,), (tokenizer.EOS,)) if config.task in ("rerank", "classify") else None,
            types=(0, 0, 0, 1, 1),
        )
        self.prompt: Prompt | None = None
        self.vision: PoolingVision | None = None
        self.slots = config.streams
        self.pooling = _info(config)
        self.info = ModelInfo(
            vocab_size=tokenizer.VOCAB_SIZE,
            context_length=config.max_model_len or WINDOW,
            eos_token_ids=[tokenizer.EOS],
            bos_token=tokenizer.NAMES[1],
            eos_token=tokenizer.NAMES[0],
            chat_template=tokenizer.TEMPLATE,
            versions={"engine": "fake"},
            of_task=asdict(self.pooling),
        )
        self._started: deque[Batch] = deque()

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return [tokenizer.encode(text, add_special_tokens=False) for text in texts]

    def detokenize(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return tokenizer.decode(tokens, skip_special_tokens)

    def widen(self) -> None:
        """Does nothing, since the fake always has as many slots as the options say."""

    def padded_length(self, needed: int) -> int:
        return needed

    def start(self, batch: Batch, alone: bool) -> None:
        self._started.append(batch)

    def wait(self) -> tuple[Batch, Array | RuntimeError]:
        batch = self._started.popleft()
        try:
            ids = set(batch.ids.ravel().tolist())
            tokenizer.fail(raises=tokenizer.RAISE in ids, hangs=tokenizer.HANG in ids, dies=tokenizer.DIE in ids)
        except RuntimeError as error:
            return batch, error
        return batch, self._output(batch).astype(np.float32)

    def _output(self, batch: Batch) -> Array:
        kind = self.pooling.kind
        vectors: Array = _TABLE[batch.ids] * batch.mask[:, :, None]
        if kind == TOKEN_EMBED:
            return vectors
        if kind == TOKEN_CLASSIFY:
            vectors = vectors[:, :, : len(TOKEN_CLASSES)]
        elif kind == SCORE:
            return np.array([[_overlap(ids, mask)] for ids, mask in zip(batch.ids, batch.mask, strict=True)])
        elif not batch.per_token:
            vectors = vectors.sum(axis=1) / batch.mask.sum(axis=1)[:, None]
        return vectors[:, : len(CLASSES)] if kind == CLASSIFY else vectors


def _info(config: EngineConfig) -> PoolingInfo:
    options = config.of(PoolingOptions)
    kind = {"ALL": TOKEN_EMBED, "SPLADE": SPARSE}.get(options.pooling, _KINDS[config.task])
    embeds = kind in VECTORS
    labels = {CLASSIFY: CLASSES, TOKEN_CLASSIFY: TOKEN_CLASSES}.get(kind, [])
    return PoolingInfo(
        kind=kind,
        dimensions=DIMENSIONS if embeds else len(labels) or 1,
        window=config.max_model_len or WINDOW,
        labels=list(labels),
        activation={SCORE: "sigmoid", CLASSIFY: "softmax", TOKEN_CLASSIFY: "softmax"}.get(kind, ""),
        outputs=len(labels) or 1,
        pooling=(options.pooling or "MEAN") if embeds else "",
        pooling_source="the fake engine",
        normalize=embeds and kind != SPARSE and options.normalize != "false",
        matryoshka=embeds and options.matryoshka,
        prompts={"query": "query: ", "document": ""} if embeds else {},
        special_single=2,
        special_pair=3 if kind in (SCORE, CLASSIFY) else 0,
        pair=IN_TEMPLATE if kind in (SCORE, CLASSIFY) else "",
    )


def _overlap(ids: Array, mask: Array) -> float:
    """Returns a pair's logit, from -6 for a document with no byte of the query to 6 for one with all of them."""
    tokens = ids[mask == 1].tolist()
    if END not in tokens:
        return 0.0
    at = tokens.index(END)
    query, document = {t for t in tokens[:at] if t < 256}, {t for t in tokens[at:] if t < 256}
    return 12.0 * len(query & document) / max(len(query), 1) - 6.0

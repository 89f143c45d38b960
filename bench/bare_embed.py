"""The limit of an embedder: forward passes alone, in this process, on texts tokenized before, in ideal batches.

Batches are those that the engine's queue makes when it has all texts at once. python -m bench.bare_embed MODEL answers
{"texts": [...], "alone": bool, "pause_s": seconds}: alone computes each text by itself; pause_s: nothing is done for so
long before each pass, as in a server between two requests of one client: threads sleep, and caches hold other things.
The answer has seconds, also of CPU, and passes.
"""

from __future__ import annotations

import gc
import sys
import time

from bench.processes import answering
from lean_ovms.config import Config
from lean_ovms.features.pooling.child.model import OpenVinoPooler
from lean_ovms.features.pooling.child.queue import QueuedPooling, QueuedText, TextQueue, padded
from lean_ovms.features.pooling.feature import PoolingOptions
from lean_ovms.features.pooling.types import PoolingParams


class Bare:
    """The model without queue, records and pipe."""

    def __init__(self, path: str) -> None:
        self._config = Config(model_path=path, task="embeddings")
        self._pooler = OpenVinoPooler(self._config)
        gc.collect()
        gc.freeze()

    def answer(self, question: dict) -> dict:
        """Compute the texts once."""
        before, after = self._pooler.template.single
        encoded = [[*before, *ids, *after] for ids in self._pooler.tokenize(question["texts"])]
        groups = [[ids] for ids in encoded] if question.get("alone") else [encoded]
        batches = [batch for group in groups for batch in self._batches(group)]
        pause_s = question.get("pause_s", 0.0)
        seconds, cpu = [], time.process_time()
        for batch in batches:
            time.sleep(pause_s)
            began = time.perf_counter()
            self._pooler.start(batch, alone=True)
            self._pooler.wait()
            seconds.append(time.perf_counter() - began)
        cpu = time.process_time() - cpu
        return {"seconds": sum(seconds), "slowest": max(seconds), "passes": seconds, "cpu": cpu}

    def _batches(self, encoded: list[list[int]]) -> list:
        queue = TextQueue(self._config.of(PoolingOptions).pooling_batch_tokens)
        request = QueuedPooling(1, PoolingParams(), len(encoded))
        queue.add(request, [QueuedText(request, at, ids) for at, ids in enumerate(encoded)])
        found = []
        while queue.requests:
            found.append(padded(queue.next_batch(), self._pooler.info.pad_token_id))
        return found


if __name__ == "__main__":
    answering(Bare(sys.argv[1]).answer)

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


def main(path: str) -> None:
    """Answer with the model without queue, records and pipe."""
    config = Config(model_path=path, task="embeddings")
    pooler = OpenVinoPooler(config)
    gc.collect()
    gc.freeze()

    def batches(encoded: list[list[int]]) -> list:
        queue = TextQueue(config.of(PoolingOptions).pooling_batch_tokens)
        request = QueuedPooling(1, PoolingParams(), len(encoded))
        queue.add(request, [QueuedText(request, at, ids) for at, ids in enumerate(encoded)])
        found = []
        while queue.requests:
            found.append(padded(queue.next_batch(), pooler.info.pad_token_id))
        return found

    def answer(question: dict) -> dict:
        before, after = pooler.template.single
        encoded = [[*before, *ids, *after] for ids in pooler.tokenize(question["texts"])]
        groups = [[ids] for ids in encoded] if question.get("alone") else [encoded]
        passes, cpu = [], time.process_time()
        for batch in [batch for group in groups for batch in batches(group)]:
            time.sleep(question.get("pause_s", 0.0))
            began = time.perf_counter()
            pooler.start(batch, alone=True)
            pooler.wait()
            passes.append(time.perf_counter() - began)
        return {"seconds": sum(passes), "passes": passes, "cpu": time.process_time() - cpu}

    answering(answer)


if __name__ == "__main__":
    main(sys.argv[1])

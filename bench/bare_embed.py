"""The limit for embedding servers: only forward passes, in this process, on tokenized texts in ideal batches.

The batches are those that the engine's queue makes if it has all texts at once.

python -m bench.bare_embed MODEL answers lines with {"texts": [...], "alone": bool, "pause_s": seconds}. With `alone`,
each text is computed by itself. `pause_s` is a pause before each pass, as in a server between two requests of one
client: threads fall asleep, and caches fill with other data. An answer has the wall time, the CPU time and the duration
of each pass, in seconds.
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
    """Answers with the model itself, without the server's queue, records and pipe."""
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

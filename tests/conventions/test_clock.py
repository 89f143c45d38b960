"""Code that waits uses a monotonic clock, because the time of day may jump, such as on a machine that was suspended."""

from __future__ import annotations

import re

from tests.conventions.source import ROOT

TIME_OF_DAY = re.compile(
    r"time\.time(_ns)?\b|date(time)?\.(now|utcnow|today)\b|from time import .*\btime(_ns)?\b|CLOCK_REALTIME"
)
ALLOWED = {
    "api/response.py": "`created` of answers",
    "models/lifecycle.py": "`created` in the list of models",
    "text/template/sandbox.py": "what a chat template prints",
    "features/batches/service.py": "when a batch expires, kept over restarts: read once, the wait is monotonic",
    "features/batches/storage.py": "when files expire, kept over restarts",
    "features/disk_cache/child/block_store.py": "names of files, in their order",
    "features/kv_events/child/events.py": "the time of an event",
    "features/lora/metrics.py": "the value of a metric",
    "features/named_keys/api.py": "the time of a report",
    "features/named_keys/usage.py": "since when is counted, kept over restarts",
    "features/ollama/api/answer.py": "`created_at` of answers",
    "features/ollama/api/models.py": "`expires_at` of the list, from seconds left by a monotonic clock",
    "features/ray/replicas.py": "changes of several machines in their order",
    "features/realtime/api/session.py": "`expires_at` of a session, from seconds left by a monotonic clock",
    "features/responses/store.py": "the age of responses, kept over restarts",
    "features/traces/observer.py": "the times of spans",
    "transports/http11/protocol.py": "the Date header",
}
"""The files that may read the time of day, with the reason: to report it, or to compare it with a time stored on disk.
"""


def test_nothing_that_waits_reads_the_time_of_day() -> None:
    files = ((str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in ROOT.rglob("*.py"))
    assert {name for name, text in files if TIME_OF_DAY.search(text)} == ALLOWED.keys()

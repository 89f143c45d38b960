"""The server with a clock at every border between its parts; see timeline.py. The product's code has no such clocks.

python -m bench.traced FILE [options of the server] runs the front end and starts its child as
python -m bench.traced FILE --child FD. Each process writes [name, seconds] pairs as JSON to FILE.front and FILE.child
when it ends; the clock is the machine's monotonic one, the same in all processes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

MARKS: list[tuple[str, float]] = []


def before(owner: Any, name: str, mark: str) -> None:
    """Note the time whenever owner.name is called."""
    whole = getattr(owner, name)

    def noting(*args: Any, **more: Any) -> Any:
        MARKS.append((mark, time.perf_counter()))
        return whole(*args, **more)

    setattr(owner, name, noting)


def after(owner: Any, name: str, mark: str) -> None:
    """Note the time whenever owner.name has returned something true."""
    whole = getattr(owner, name)

    def noting(*args: Any, **more: Any) -> Any:
        result = whole(*args, **more)
        if result or result is None:
            MARKS.append((mark, time.perf_counter()))
        return result

    setattr(owner, name, noting)


def front(file: str, argv: list[str]) -> int:
    """Serve until a signal."""
    import uvloop

    from lean_ovms.api.app import App
    from lean_ovms.cli.arguments import parse
    from lean_ovms.engine.client.child import Child
    from lean_ovms.engine.client.engine import EngineClient
    from lean_ovms.engine.client.replies import ReplyStream
    from lean_ovms.models.text_model import TextModel
    from lean_ovms.observability import logging
    from lean_ovms.server import run
    from lean_ovms.transports.http11.connection import HttpConnection
    from lean_ovms.transports.http11.writer import ResponseWriter

    config = parse(argv, {})
    logging.setup(config.log_level)
    before(HttpConnection, "data_received", "request is here")
    before(App, "handle", "HTTP read")
    before(TextModel, "start", "fields read")
    before(EngineClient, "submit", "template rendered")
    after(Child, "write", "frame written")
    before(ReplyStream, "add", "token is here")
    before(ResponseWriter, "write", "event rendered")
    after(ResponseWriter, "write", "event written")
    command = [sys.executable, "-m", "bench.traced", file, "--child"]
    try:
        return uvloop.run(run.serve(run.build(config, lambda one: TextModel(one, EngineClient(one, command)))))
    finally:
        dump(f"{file}.front")


def child(file: str, fd: str) -> int:
    """The engine child."""
    from lean_ovms.engine.generation.fair_queue import FairQueue
    from lean_ovms.engine.generation.request_validator import RequestValidator
    from lean_ovms.engine.generation.task import GenerationTask
    from lean_ovms.engine.worker import __main__ as entry
    from lean_ovms.engine.worker.transport import Transport

    after(Transport, "receive", "frame read")
    after(RequestValidator, "request", "encoded, checked")
    after(FairQueue, "started", "added")
    before(GenerationTask, "step", "step begins")
    after(GenerationTask, "step", "step ends")
    after(Transport, "send", "frame sent")
    try:
        return entry.main([fd])
    finally:
        dump(f"{file}.child")


def dump(file: str) -> None:
    """Write the marks."""
    Path(file).write_text(json.dumps(MARKS))


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    if rest[:1] == ["--child"]:
        status = child(name, rest[1])
        sys.stderr.flush()
        os._exit(status)
    sys.exit(front(name, rest))

"""Runs the server under test as a process, writes its configuration, and reads its log."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from lean_ovms.config import DEMO_MODEL
from tools.soaking.ledger import Ledger

EXACT = '{"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}'
"""Plugin options with which an answer does not depend on the other sequences in the batch."""
FLAGS = (
    *("--rest_port", "0", "--rest_bind_address", "127.0.0.1", "--log_format", "json", "--metrics_enable"),
    *("--plugin_config", EXACT, "--max_queued_requests", "24", "--max_num_seqs", "16", "--cache_size", "1"),
    *("--grammar_timeout_s", "60", "--request_timeout_s", "180", "--trusted_proxies", "127.0.0.1"),
)
READY_S = 120.0


class Server:
    """A server process, whose log goes into the ledger."""

    def __init__(self, ledger: Ledger, directory: Path, replicas: int = 1) -> None:
        self.ledger = ledger
        self.replicas = replicas
        self.config = directory / "config.json"
        self.port = 0
        self.models = ["demo"]
        self._ready = asyncio.Event()

    async def start(self) -> None:
        """Starts the server and waits until it is ready."""
        self.configure(second=False, sequences=16)
        clock, pipes = [sys.executable, "-m", "bench.ticking"], {"stdin": PIPE, "stdout": PIPE, "limit": 1 << 24}
        self.control = await asyncio.create_subprocess_exec(*clock, "control", **pipes)
        command = [*clock, "--config_path", str(self.config), *FLAGS, "--engine_replicas", str(self.replicas)]
        self.process = await asyncio.create_subprocess_exec(*command, stderr=PIPE, **pipes)
        self.reading = asyncio.create_task(self._read())
        await asyncio.wait_for(self._ready.wait(), READY_S)
        for process in (self.control, self.process):
            assert process.stdout is not None
            await process.stdout.readline()

    def configure(self, *, second: bool, sequences: int) -> None:
        """Writes config.json.

        Args:
            second: Whether the second model is in it.
            sequences: max_num_seqs of the first model. Another number than before replaces its engine.
        """
        self.models = ["demo", "second"] if second else ["demo"]
        own = {"demo": {"max_num_seqs": sequences}, "second": {}}
        entries = [{"config": {"name": name, "base_path": str(DEMO_MODEL), **own[name]}} for name in self.models]
        self.config.write_text(json.dumps({"model_config_list": entries}))

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for raw in self.process.stderr:
            try:
                line = json.loads(raw)
            except ValueError:
                self.ledger.violate(f"not a log line: {raw[:500]!r}")
                continue
            message = line.get("message", "")
            if "listens on" in message:
                self.port = int(message.rpartition(":")[2])
            elif message.startswith("ready: "):
                self._ready.set()
            self.ledger.heard(line)

    async def stop(self) -> None:
        """Stops the server with SIGTERM, as a supervisor does. It is a violation if the server does not end."""
        self.control.kill()
        await self.control.wait()
        self.process.send_signal(signal.SIGTERM)
        try:
            status = await asyncio.wait_for(self.process.wait(), 60)
            if status != 0:
                self.ledger.violate(f"exit status {status}")
        except asyncio.TimeoutError:
            self.process.kill()
            self.ledger.violate("did not stop within 60 s of SIGTERM")
        await self.reading

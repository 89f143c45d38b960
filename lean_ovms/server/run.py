"""The wiring: build the rooms, listen, drain, stop. The only file that knows all of them, and the only one that
touches signals and process exit.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from .. import __version__
from ..api.app import App
from ..config import Config
from ..deployment.desired import server
from ..deployment.manager import ModelManager
from ..engine.client import prestart
from ..errors import StartError
from ..models.text_model import Model
from ..observability import logging as log
from ..transports.http11.server import Server
from ..util.concurrency import SWITCH_INTERVAL_S
from .systemd import READY, STOPPING, SystemdNotifier

logger = logging.getLogger("lean_ovms")

OWN_FILES = 256
"""Descriptors beside the connections that clients may hold: surplus ones that read their 503, sockets, models."""

TWICE_S = 0.5
"""Two Ctrl-C within so long are one: a terminal sends it to all, and a wrapper (uv run, npm) passes it on."""

STARTED, NEVER_SERVED = 0, 3
"""Exit statuses: stopped after serving; never served (a supervisor should not try the same again)."""


def run(config: Config) -> int:
    """Serve until SIGTERM or SIGINT; the exit status."""
    try:
        log.setup(config.log_level, config.log_format, config.log_path)
    except OSError as error:
        log.setup(config.log_level, config.log_format)
        logger.error("cannot start: --log_path %s: %s", config.log_path, error.strerror)
        return NEVER_SERVED
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    config = replace(config, max_connections=_connections(config.max_connections))
    try:
        return uvloop.run(serve(build(config), SystemdNotifier.of(os.environ)))
    except StartError as error:
        logger.error("cannot start: %s", error)
        return NEVER_SERVED


def build(config: Config, make: Callable[[Config], Model] = Model) -> App:
    """The app over its models, not loaded yet. Serving it from elsewhere: `await load(app)`, `app.handle`, `await
    close(app)`.

    make: what makes a model of its options. Raises StartError for options that cannot work.
    """
    config = replace(server(config), api_key=_api_key(config))
    app = App(config, [])
    app.keeper = ModelManager(config, app, make=make)
    return app


async def load(app: App) -> None:
    """Open the response store and load all models. Raises StartError."""
    await app.responses.open()
    await app.keeper.load()
    prestart.discard()  # there was no model to load


async def close(app: App) -> None:
    """Let go of all that load took: engines, and the response store. Idempotent."""
    app.gallery.close()
    await app.responses.close()
    await app.keeper.stop()
    app.aside.close()


async def serve(app: App, supervisor: SystemdNotifier | None = None) -> int:
    """Listen at once (health says when models are ready), serve until a signal, drain, stop."""
    supervisor = supervisor or SystemdNotifier()
    signals = Signals()
    server = Server(app.config, app.handle)
    alive = None
    try:
        await server.start()
        logger.info("lean_ovms %s listens on %s", __version__, ", ".join(server.addresses))
        await _until(load(app), signals.stop)
        if not signals.stop.is_set():
            logger.info("ready: %s", ", ".join(name for name, model in app.models.items() if model.ready) or "none")
            _settle()
            supervisor.tell(READY, "STATUS=serving")
            alive = asyncio.create_task(supervisor.keep_alive())  # to the very end: draining takes its time, too
            await _until(watch(app), signals.stop)
        app.draining = True
        supervisor.tell(STOPPING, "STATUS=finishing running requests")
        logger.info("stopping: waiting up to %g s for running requests", app.config.drain_timeout_s)
        await _until(_drain(app, server), signals.hurry)
    finally:
        await server.drain(0)
        await close(app)
        if alive is not None:
            alive.cancel()
    logger.info("stopped")
    return STARTED


class Signals:
    """stop: SIGTERM, Ctrl-C, or the terminal was closed. hurry: Ctrl-C again, by somebody who will not wait."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._since = 0.0
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._heard, number)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # else nohup has said that it shall go on
            self._loop.add_signal_handler(signal.SIGHUP, self._heard, signal.SIGHUP)

    def _heard(self, number: int) -> None:
        now = self._loop.time()
        if not self.stop.is_set():
            self.stop.set()
            self._since = now
        elif number == signal.SIGINT and now - self._since >= TWICE_S:
            logger.info("waiting no longer")
            self.hurry.set()


async def _drain(app: App, server: Server) -> None:
    timeout_s = app.config.drain_timeout_s
    await asyncio.gather(server.drain(timeout_s), app.responses.settle(timeout_s))


def _settle() -> None:
    """Take what has been loaded out of the garbage collector's sight: looking through all of it stops every stream for
    10 ms (32,000 objects, measured 2026-11), and none of it is ever garbage."""
    gc.collect()
    gc.freeze()


async def watch(app: App) -> None:
    """Serve changed configurations as they come; for ever."""
    if app.config.file_system_poll_wait_seconds:
        await app.keeper.watch(app.config.file_system_poll_wait_seconds)
    await asyncio.Event().wait()


async def _until(working: Coroutine[Any, Any, None], stopping: asyncio.Event) -> None:
    """Wait for work to end, or for the signal to stop, which cancels it."""
    work = asyncio.create_task(working)
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        for task in (work, stop):
            task.cancel()
        await asyncio.gather(work, stop, return_exceptions=True)


def _connections(wanted: int) -> int:
    """How many connections there may be beside our own files; the soft limit of open files is raised for them.

    More than fit would take the files that a restarted engine needs, or a store.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted + OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted
    most = files if hard == resource.RLIM_INFINITY else min(files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    possible = max(most - OWN_FILES, most // 4)
    if possible < wanted:
        logger.warning("only %d files may be open: %d connections, not --max_connections %d", most, possible, wanted)
    return min(possible, wanted)


def _api_key(config: Config) -> str:
    if not config.api_key_file:
        return config.api_key
    try:
        lines = Path(config.api_key_file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise StartError(f"--api_key_file {config.api_key_file}: {reason}") from None
    key = lines[0].strip() if lines else ""
    if not key:
        raise StartError(f"--api_key_file {config.api_key_file}: the first line is empty")
    return key

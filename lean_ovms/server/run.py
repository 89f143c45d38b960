"""Runs the server process: builds the app, listens, loads, drains and stops. Only this module handles signals."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, MutableMapping, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from .._version import __version__
from ..api import router
from ..api.app import App
from ..api.keys import ApiKeys
from ..config import Config
from ..engine.client import prestart
from ..errors import ExitStatus, StartError, WrongOptions
from ..manifest import API_KEYS, DEPLOYMENT, named
from ..models.model import Deployment, Model, make_model
from ..observability import logging as log
from ..transports.http11.server import Server
from ..util import resources
from ..util.concurrency import SWITCH_INTERVAL_S
from .checks import checked

logger = logging.getLogger("lean_ovms")

OWN_FILES = 256
"""File descriptors needed in addition to --max_connections: connections that get a 503, listening sockets, engines."""

TWICE_S = 0.5
"""Seconds in which two Ctrl-C count as one: a wrapper (uv run, npm) repeats the terminal's."""


def run(config: Config) -> int:
    """Serves until SIGTERM or SIGINT, and returns the exit status."""
    try:
        log.setup(config.log_level, config.log_format, config.log_path)
    except OSError as error:
        log.setup(config.log_level, config.log_format)
        logger.error("cannot start: --log_path %s: %s", config.log_path, error.strerror)
        return ExitStatus.USAGE
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    resources.configure_allocator()
    config = config.replace(max_connections=_max_connections(config.max_connections))
    try:
        return _run(serve(build(config), SystemdNotifier.from_environ(os.environ)))
    except StartError as error:
        logger.error("cannot start: %s", error)
        return error.exit_status
    except RuntimeError as error:
        if not resources.lacks_thread(str(error)):
            raise
        logger.error("cannot start: %s", resources.with_thread_limits(str(error)))
        return ExitStatus.NEVER_SERVED


def build(config: Config, make: Callable[[Config], Model] = make_model) -> App:
    """Returns the app with its models, which `make` makes and which are not loaded. Raises WrongOptions.

    It is served by `await load(app)`, `app.handle` and `await close(app)`.
    """
    try:
        deployment: type[Deployment] = config.part(DEPLOYMENT)
        config = checked(deployment.of_server(config))
        app = App(config)
        app.services.manager = deployment(config, app.registry, make=lambda one: _prepared(app, make(one)))
        return app
    except WrongOptions:
        raise
    except StartError as error:
        raise WrongOptions(str(error), reason=error.reason) from error


def _prepared(app: App, model: Model) -> Model:
    """Returns the model with the features' preparations for it added."""
    for row in model.config.composition.model_rows:
        if model.config.any_set(row.options) and (found := named(row.package, row.install)(app.services, model)):
            model.preparations.append(found)
    return model


async def load(app: App) -> None:
    """Starts the features' services, and loads all models. Raises StartError."""
    await app.open()
    if app.services.manager is not None:
        await asyncio.gather(app.services.manager.load(), app.preload())
    prestart.discard()  # there was no model to load


async def close(app: App) -> None:
    """Stops everything that `load` has started: engines, and services of features. Idempotent."""
    await app.close()
    if app.services.manager is not None:
        await app.services.manager.stop()
    app.services.offload.close()


async def serve(app: App, notifier: SystemdNotifier | None = None) -> int:
    """Serves until a signal, then drains and stops; returns the exit status.

    The server listens at once, and its health check reports when models are ready. With reuse_port it listens only once
    the models are loaded.
    """
    notifier = notifier or SystemdNotifier()
    signals = Signals()
    server = Server(app.config, app.handle, app.is_vital, app.check_head)
    alive = None
    try:
        if app.services.manager is not None:
            await app.services.manager.check()  # before it listens: wrong options are found at once
        await server.bind()
        if not app.config.reuse_port:
            await _listen(server, keys=app.services.keys)
        await _until(load(app), signals.stop)
        if not signals.stop.is_set():
            if app.config.reuse_port:  # until now, the server that this one replaces has answered
                await _listen(server, keys=app.services.keys)
            _log_ready(app, server.addresses)
            _freeze_gc()
            notifier.notify(READY, "STATUS=serving")
            alive = asyncio.create_task(notifier.keep_alive())  # until the end: draining takes time, too
            await _until(watch(app), signals.stop)
        app.services.draining = True
        notifier.notify(STOPPING, "STATUS=finishing running requests")
        if app.config.drain_delay_s:
            logger.info("stopping: reporting not ready, but serving for another %g s", app.config.drain_delay_s)
            await _until(asyncio.sleep(app.config.drain_delay_s), signals.force)
        logger.info("stopping: waiting up to %g s for running requests", app.config.drain_timeout_s)
        await _until(drain(app, server), signals.force)
    finally:
        await server.drain(0, app.end)
        await close(app)
        if alive is not None:
            alive.cancel()
    logger.info("stopped")
    return ExitStatus.OK


async def _listen(server: Server, *, keys: ApiKeys) -> None:
    await server.start()
    logger.info("lean_ovms %s listens on %s", __version__, ", ".join(server.addresses))
    _log_if_open(server.config, server.addresses, keys)


def _log_if_open(config: Config, addresses: Sequence[str], keys: ApiKeys) -> None:
    """Logs a warning if other machines can reach the server and it needs no key."""
    hosts = [urlsplit(address).hostname for address in addresses if not address.startswith("unix:")]
    if not keys.required and not all(ip_address(host or "").is_loopback for host in hosts):
        row = config.composition.parts.get(API_KEYS)
        logger.warning(
            "no API key is set: everybody who can reach this machine may use the server, and stop it; to prevent this, "
            "set %s or --rest_bind_address 127.0.0.1",
            "the variable API_KEY" if row is None else f"--{row.options[0]} FILE",
        )


def _log_ready(app: App, addresses: Sequence[str]) -> None:
    ready = ", ".join(name for name, model in app.registry.models.items() if model.ready)
    if not ready and app.registry.models:
        asked = f", or after POST {RELOAD}" if RELOAD in router.paths(app.config.composition) else ""
        logger.warning("no model could be loaded, so requests get a 503; %s%s", RETRIED, asked)
        return
    logger.info("ready: %s; %s", ready or "no models", _entry_points(addresses, app.config))


RETRIED = "models are loaded again when the configuration or their files change"
RELOAD = "/v1/config/reload"
"""The path at which a server can be asked to reload its models."""


def _entry_points(addresses: Sequence[str], config: Config) -> str:
    """Returns the URLs of the API for the log. An address of all interfaces is shown as localhost."""
    if addresses[0].startswith("unix:"):
        return (
            f"try curl --unix-socket {addresses[0].removeprefix('unix:')} http://localhost{config.root_path}/v1/models"
        )
    base = re.sub(r"//(0\.0\.0\.0|\[::\])", "//localhost", addresses[0]) + config.root_path
    people = " and ".join(base + path for path in router.pages(config))
    return f"clients use {base}/v1" + (f", browsers {people}" if people else "")


class Signals:
    """The signals that stop a server."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        """Set by SIGTERM, by Ctrl-C, or when the terminal is closed."""
        self.force = asyncio.Event()
        """Set by another Ctrl-C, which ends the draining."""
        self._loop = asyncio.get_running_loop()
        self._stopped_at = 0.0
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal, number)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # else nohup ignores it
            self._loop.add_signal_handler(signal.SIGHUP, self._on_signal, signal.SIGHUP)

    def _on_signal(self, number: int) -> None:
        now = self._loop.time()
        if not self.stop.is_set():
            self.stop.set()
            self._stopped_at = now
        elif number == signal.SIGINT and now - self._stopped_at >= TWICE_S:
            logger.info("stopping: no longer waiting for running requests")
            self.force.set()


async def drain(app: App, server: Server) -> None:
    """Waits until running requests have finished, at most drain_timeout_s seconds."""
    timeout_s = app.config.drain_timeout_s
    await asyncio.gather(server.drain(timeout_s, app.end), app.drain(timeout_s))


def _freeze_gc() -> None:
    """Excludes all existing objects from garbage collection, which would stop every stream for 10 ms (2026-11)."""
    gc.collect()
    gc.freeze()


async def watch(app: App) -> None:
    """Reloads changed configurations and API keys until it is cancelled."""
    if period_s := app.config.file_system_poll_wait_seconds:
        manager = app.services.manager
        models = [manager.watch(period_s)] if manager is not None else []
        await asyncio.gather(app.services.keys.watch(period_s), *models)
    await asyncio.Event().wait()


async def _until(working: Coroutine[Any, Any, None], stopping: asyncio.Event) -> None:
    """Runs a coroutine to its end, or cancels it when the event is set."""
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


def _run(main: Coroutine[Any, Any, int]) -> int:
    """Runs the main coroutine in uvloop, or in asyncio's slower loop if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        logger.warning("uvloop is not installed: streams take about twice as much CPU time")
        return asyncio.run(main)
    return uvloop.run(main)


def _max_connections(configured: int) -> int:
    """Returns the number of connections that the limit of open files allows, at most the configured one.

    The soft limit of open files is raised if necessary. Descriptors are reserved for a restarted engine and the files
    of features.
    """
    files = configured + OWN_FILES
    limit = resources.raise_open_files(files)
    if limit == files:
        return configured
    possible = max(limit - OWN_FILES, limit // 4)
    if possible < configured:
        logger.warning(
            "the limit of %d open files allows %d connections instead of --max_connections %d",
            limit,
            possible,
            configured,
        )
    return min(possible, configured)


READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"


class SystemdNotifier:
    """Notifies systemd, or another supervisor with the same protocol, that the server is ready, alive or stopping.

    See sd_notify(3). Without NOTIFY_SOCKET in the environment it does nothing.
    """

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        """Creates a notifier for the address of systemd's socket, or "", and the unit's WatchdogSec, or 0."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = watchdog_s

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str]) -> SystemdNotifier:
        """Returns the notifier of the environment, whose variables it removes: child processes must not have them."""
        address = environ.pop("NOTIFY_SOCKET", "")
        period, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        ours = period.isdecimal() and pid in ("", str(os.getpid()))
        return cls(address, int(period) / 1e6 if ours else 0.0)

    def notify(self, *lines: str) -> None:
        """Sends a notification. A failure is only logged, since the server also works without a supervisor."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.connect(self._address)
                sock.send("\n".join(lines).encode())
        except OSError as error:
            logging.getLogger("lean_ovms").warning("cannot notify the supervisor at NOTIFY_SOCKET: %s", error.strerror)

    async def keep_alive(self) -> None:
        """Reports twice per watchdog period that the event loop is running, until it is cancelled."""
        while self._address and self.watchdog_s:
            self.notify(ALIVE)
            await asyncio.sleep(self.watchdog_s / 2)
        await asyncio.Event().wait()

"""Notifications to systemd, or another supervisor with its protocol: ready, stopping, alive. See sd_notify(3).

Without NOTIFY_SOCKET in the environment nothing happens.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import MutableMapping

log = logging.getLogger("lean_ovms")

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"


class SystemdNotifier:
    """Reports the server's state to systemd. address: the socket to write to, "" for none. watchdog_s: WatchdogSec of
    the unit; 0: no watchdog."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = watchdog_s

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str]) -> SystemdNotifier:
        """Returns the notifier that the environment configures. Removes its variables: children must not inherit
        them."""
        address = environ.pop("NOTIFY_SOCKET", "")
        period, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        ours = period.isdecimal() and pid in ("", str(os.getpid()))
        return cls(address, int(period) / 1e6 if ours else 0.0)

    def notify(self, *lines: str) -> None:
        """Send a notification. A failure is logged only: the server runs without a supervisor, too."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.connect(self._address)
                sock.send("\n".join(lines).encode())
        except OSError as error:
            log.warning("the supervisor at NOTIFY_SOCKET does not listen: %s", error.strerror)

    async def keep_alive(self) -> None:
        """Notify twice per watchdog period that the event loop runs; until cancelled."""
        while self._address and self.watchdog_s:
            self.notify(ALIVE)
            await asyncio.sleep(self.watchdog_s / 2)
        await asyncio.Event().wait()

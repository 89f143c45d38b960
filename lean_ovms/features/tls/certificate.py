"""The TLS context for connections, and certificates that are replaced while the server is running."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from ...config import Config
from ...errors import StartError, WrongOptions
from ...util.files import read_bytes
from .feature import TlsOptions

NOT_PEM = "they must contain a certificate and a private key without a passphrase, as PEM"
REASONS = dict.fromkeys(("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"), "the key belongs to another certificate")
"""OpenSSL's reasons for errors in plain words."""
OPTIONS = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
CHECK_S = 60.0
"""Seconds between two checks of the files. A certificate is renewed every few days or months."""

log = logging.getLogger("lean_ovms.transports")


class Certificate:
    """The certificate and key that the options name: a `transports.http11.server.Encryption`."""

    def __init__(self, config: Config) -> None:
        """Loads the certificate and key. Raises StartError naming the option at fault."""
        self._options = config.of(TlsOptions)
        self._files = [Path(name) for option in OPTIONS if (name := getattr(self._options, option))]
        self._seen = self._file_stamps()
        self.context = _context(self._options)
        """The context of new connections. Open connections keep the old one."""

    async def watch(self, period_s: float = CHECK_S) -> None:
        """Loads certificates that are replaced once they are complete, checked every `period_s`; never returns."""
        while True:
            await asyncio.sleep(period_s)
            stamps = self._file_stamps()
            if stamps != self._seen:
                self._seen = stamps
                self._reload()

    @staticmethod
    def introduce(context: ssl.SSLContext, config: Config) -> None:
        """Prepares a context for a client of this machine's own server, with the client certificate if it needs one."""
        options = config.of(TlsOptions)
        if options.ssl_ca_certs:
            context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile, password=lambda: "")

    def _reload(self) -> None:
        try:
            _context(self._options)  # checked in another context, because half of a new pair would break the one in use
            _load(self.context, self._options)
        except StartError as error:
            log.error("the old certificate is kept: %s", error)
        else:
            log.info("certificate reloaded from %s", self._files[0])

    def _file_stamps(self) -> list[tuple[int, int] | None]:
        found: list[tuple[int, int] | None] = []
        for file in self._files:
            try:
                status = file.stat()
            except OSError:
                found.append(None)
            else:
                found.append((status.st_ctime_ns, status.st_ino))  # the time of changes to permissions, too
        return found


def _context(options: TlsOptions) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load(context, options)
    return context


def _load(context: ssl.SSLContext, options: TlsOptions) -> None:
    for option in OPTIONS:  # OpenSSL does not report which file is wrong
        try:
            if name := getattr(options, option):
                read_bytes(name)
        except OSError as error:
            raise WrongOptions(f"--{option} {name}: {error.strerror}") from None
    try:
        # An encrypted key fails here. Without the password argument, OpenSSL would ask on the terminal.
        context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile, password=lambda: "")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or NOT_PEM
        raise WrongOptions(f"cannot use --ssl_certfile and --ssl_keyfile: {REASONS.get(reason, reason)}") from None
    if options.ssl_ca_certs:
        try:
            context.load_verify_locations(options.ssl_ca_certs)
        except OSError:
            raise WrongOptions(f"--ssl_ca_certs {options.ssl_ca_certs}: it must contain certificates as PEM") from None
        context.verify_mode = ssl.VerifyMode(options.ssl_cert_reqs)

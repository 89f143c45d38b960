"""The manifest of TLS."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config.options import Options, option
from ...errors import StartError
from ...manifest import ENCRYPTION, Feature, PartRow

_listen = partial(option, group="listen")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TlsOptions(Options):
    """The options for the files of certificates and keys."""

    ssl_certfile: str = _listen("", "file with the chain of TLS certificates (PEM)")
    ssl_keyfile: str = _listen("", "file with the private TLS key (PEM)")
    ssl_ca_certs: str = _listen(
        "", "file with the certificates (PEM) of the authorities that must have issued clients' certificates"
    )
    ssl_cert_reqs: int = _listen(
        2,
        "client certificates, with ssl_ca_certs: 2 requires one, 1 verifies one if it is sent, 0 requests none",
        low=0,
        high=2,
    )

    def check(self, config: Any) -> None:
        """Raises StartError if one of the files that are needed together is missing."""
        if bool(self.ssl_certfile) != bool(self.ssl_keyfile):
            raise StartError("--ssl_certfile and --ssl_keyfile must be used together")
        if self.ssl_ca_certs and not self.ssl_certfile:
            raise StartError("--ssl_ca_certs needs --ssl_certfile and --ssl_keyfile")


FEATURE = Feature(
    name="tls",
    summary="encrypts connections with certificates that can be replaced while the server runs",
    options=TlsOptions,
    flags="flags.txt",
    parts=(
        PartRow(
            seam=ENCRYPTION, make="certificate:Certificate", options=("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
        ),
    ),
)

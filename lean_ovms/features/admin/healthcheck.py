"""`lean-ovms healthcheck`: checks whether the server with the given options is ready; its exit status is the answer.

`lean-ovms healthcheck --pid 1` takes the options of a running server from its command line, so that a container's
health check follows whatever the container was started with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...cli.arguments import parse
from ...cli.commands import parser
from ...cli.completion import NAMES
from ...errors import ExitStatus, StartError
from .client import READY, ServerClient, address

TIMEOUT_S = 4.0
PROC = Path("/proc")
NOTES = "Give it the options with which the server was started, such as --rest_port 9000."
"""The text of --help after the options."""


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs the command. Returns 0 if the server is ready, else raises CommandFailed.

    Raises StartError if the options do not give the server's address.
    """
    own = parser("healthcheck", NOTES)
    own.add_argument("--pid", metavar="N", help="check the server with the process id N, whatever its options are")
    given, options = own.parse_known_args(argv)
    config = parse([*(options_of(given.pid) if given.pid else ()), *options], environ)
    ServerClient(address(config), timeout_s=TIMEOUT_S, own=config).check(READY)
    return ExitStatus.OK


def options_of(pid: str) -> list[str]:
    """Returns the options in the command line of the server: process `pid` or its child. Raises StartError."""
    try:
        words = (PROC / pid / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    except OSError as error:
        raise StartError(f"process {pid}: {error.strerror}") from None
    for place, word in enumerate(words):
        if os.path.basename(word) in NAMES:
            return words[place + 1 :]
    raise StartError(f"process {pid} is not lean_ovms: {' '.join(words)[:200]}")

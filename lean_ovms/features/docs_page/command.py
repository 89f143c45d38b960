"""`lean-ovms docs [URL] [WORD ...]`: opens the documentation of a running server in the browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from ...cli.arguments import own, parse
from ...cli.commands import parser
from ...errors import ExitStatus, StartError
from ..admin.client import connect, is_url

NOTES = """The server contains the documentation of its own version, so no internet access is needed. Without URL, the
command uses the server that runs with these options on this machine, such as --rest_port 9000. With words,
it opens the sections that contain all of them: lean_ovms docs limit memory."""


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Prints the documentation's address, and opens it if there is a browser. Raises StartError or CommandFailed."""
    _, words, options = own(parser("docs", NOTES), argv)
    url = words.pop(0) if words and is_url(words[0]) else ""
    client = connect(url, parse(options, environ))
    if client.url.startswith("unix:"):
        raise StartError("a browser cannot open a Unix socket; start the server with a port")
    path = f"/docs/search?{urlencode({'q': ' '.join(words)})}" if words else "/docs/"
    client.check(path)
    print(client.url + path, flush=True)
    webbrowser.open(client.url + path)
    return ExitStatus.OK

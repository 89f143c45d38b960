"""`lean-ovms stop NAME [URL]`: unloads a model of a running server, which the next request loads again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...cli.arguments import own, parse
from ...cli.commands import parser
from ...errors import ExitStatus, StartError
from ..admin.client import connect, is_url

NOTES = """The model's running requests may finish, and the next request loads it again. Without URL, the command uses
the server that runs with these options on this machine, such as --rest_port 9000. To stop the server
itself, press Ctrl-C or send SIGTERM."""
PATIENCE_S = 600.0


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Unloads a model of a running server, and returns the exit status. Raises StartError or CommandFailed."""
    _, words, options = own(parser("stop", NOTES), argv)
    names = [word for word in words if not is_url(word)]
    if len(names) != 1 or len(words) > 2:
        raise StartError("give the name of one model, as lean_ovms ps shows it, and at most one URL")
    client = connect("".join(word for word in words if is_url(word)), parse(options, environ))
    client.timeout_s = PATIENCE_S
    client.post("/models/unload", {"model": names[0]})
    print(f"{names[0]} is unloaded; the next request loads it again")
    return ExitStatus.OK

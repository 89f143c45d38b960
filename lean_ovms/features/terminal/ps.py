"""`lean-ovms ps [URL]`: prints the models of a running server, and what it is doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...cli.arguments import own, parse
from ...cli.commands import add_json, parser, print_json, table
from ...errors import CommandFailed, ExitStatus, counted
from ..admin.client import connect, url_of

NOTES = (
    "Without URL, the command asks the server that runs with these options on this machine, such as --rest_port 9000."
)
HEAD = ("NAME", "STATE", "TASK", "CONTEXT", "ENGINE")


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Prints the table. Raises StartError or CommandFailed."""
    given, words, options = own(add_json(parser("ps", NOTES)), argv)
    client = connect(url_of(words), parse(options, environ))
    rows = client.models()
    try:
        load = client.get("/server_info")["load"]
    except (CommandFailed, KeyError, TypeError):  # another kind of server
        load = None
    if given.json:
        print_json({"models": rows, "load": load})
        return ExitStatus.OK
    print(table([HEAD, *map(_row, rows)]) if rows else f"{client.url} has no models")
    if load is None:
        return ExitStatus.OK
    running = counted(load["running"], "request")
    print(f"{running} running, {load['waiting']} waiting, KV cache {load['kv_cache_usage']:.0%} used")
    return ExitStatus.OK


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    state = (row.get("status") or {}).get("value", "")
    engine = (row.get("generates_by") or {}).get("type", "")
    return row["id"], state, row.get("task", ""), str(row.get("max_model_len", "")), engine

"""`lean-ovms run MODEL [PROMPT]`: a chat in the terminal with a separate server that ends with the chat."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...cli.arguments import names_model, own, parse
from ...cli.commands import set_up_log
from ...composition import compose
from ...errors import CommandFailed, ExitStatus, StartError
from ...manifest import ENCRYPTION
from ...server.checks import checked
from ...util import child_process
from ..admin.client import READY, ServerClient, is_url
from ..deployment.desired import ServedModels, fetched
from ..terminal import chat

NOTES = f"""MODEL is a directory, {compose().a_model_file}demo (the default), or the name of a model on the hub,
which is pulled if it is missing. An option such as -hf may name it instead. With PROMPT, or text on stdin, the
command prints one answer and exits. All other options are those of the server, such as --cache_size or --temp."""
POLL_S, STOP_S = 0.05, 10.0
CLEAR_LINE = "\r\x1b[K"


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs the command, and returns the exit status. Raises StartError or CommandFailed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(ExitStatus.SIGNALLED + number))
    given, words, options = own(chat.arguments("run", NOTES), argv)
    if words and is_url(words[0]):
        return chat.main(argv, environ)
    model = [] if names_model(options) else words[:1]
    prompt = chat.prompt_of(words[len(model) :])
    config = ServedModels().with_repository(checked(parse(["serve", *model, *options], environ)))
    if config.source_model:
        set_up_log(config, plain=True)
        try:
            fetched(config)
        except StartError as error:
            raise CommandFailed(str(error)) from None
    encryption = config.composition.parts.get(ENCRYPTION)
    names = encryption.options if encryption is not None and config.wants(ENCRYPTION) else ()
    plain = [f"--{name}=" for name in names]  # switches off TLS, which the environment or a file of options may request
    with _server([*model, *options, *plain], "".join(model) or "the demo model", config.api_key) as client:
        conversation = chat.Conversation(client, client.model(), given.system, {}, verbose=given.verbose)
        return chat.talk(conversation, prompt, environ)


@contextmanager
def _server(options: Sequence[str], name: str, api_key: str) -> Iterator[ServerClient]:
    """Starts a server on a Unix socket in a new directory; yields a client once the server is ready, and stops it at
    the end.

    Raises CommandFailed with the end of the server's log.
    """
    with tempfile.TemporaryDirectory(prefix="lean_ovms-") as directory:
        place, file = f"{directory}/s", Path(directory, "log")
        command = [sys.executable, "-m", "lean_ovms", "serve", *options, "--unix_socket", place]
        with file.open("wb") as log_file:
            # In its own session, so that Ctrl-C stops an answer and not the server.
            server = subprocess.Popen(  # noqa: S603 - the command is ours
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
                preexec_fn=child_process.die_with_parent,
                env=os.environ | child_process.import_path(),
            )
        try:
            client = ServerClient(f"unix:{place}", api_key)
            _wait(server, client, name, file)
            yield client
        finally:
            server.terminate()
            try:
                server.wait(STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait(server: subprocess.Popen[bytes], client: ServerClient, name: str, file: Path) -> None:
    """Waits until the server is ready. Raises CommandFailed if it has ended."""
    terminal = sys.stderr.isatty()
    began = time.monotonic()
    try:
        while True:
            if terminal:
                line = f"{CLEAR_LINE}loading {name} ... {time.monotonic() - began:.0f} s"
                print(line, end="", file=sys.stderr, flush=True)
            ended = server.poll() is not None
            try:
                client.check(READY)
                return
            except CommandFailed:
                pass
            if ended:
                lines = file.read_text("utf-8", "replace").splitlines() or [f"exit status {server.returncode}"]
                raise CommandFailed(re.sub(r"^.*? ERROR \S+: ", "", lines[-1]))
            time.sleep(POLL_S)
    finally:
        if terminal:
            print(CLEAR_LINE, end="", file=sys.stderr, flush=True)

"""The entry point of the console command, which runs a command or the server.

The engine process takes longest to start, so it is started before the server's options are read. This module imports
nothing heavy before that.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from ..engine.client import prestart
from ..errors import CommandFailed, ExitStatus, StartError
from ..util import child_process

if TYPE_CHECKING:
    from ..config import Config
    from ..manifest import Command

STDERR = 2
NO_ENGINE = (
    *("-h", "--help", "--version", "--completion", "--pull", "--list", "--configure"),
    *("--add", "--remove", "--fake"),
)
"""The beginnings of flags that need no engine process, among them OVMS's for the commands of any feature, since it is
not known yet which features the server has. They matter only for speed: an engine process that is not used is ended."""


def main() -> NoReturn:
    """Runs the console command, and exits with one of `errors.ExitStatus`."""
    _exit_on_ctrl_c()
    _open_standard_streams()
    first = (*sys.argv[1:], "serve")[0]
    if (first == "serve" or first.startswith("-")) and not any(word.startswith(NO_ENGINE) for word in sys.argv[1:]):
        prestart.prestart(log_to_stderr=True)
    try:
        _main()
    finally:
        prestart.discard()


def _main() -> NoReturn:
    try:
        try:
            config = _command(sys.argv[1:])
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has gone, as head has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitStatus.SIGNALLED + signal.SIGPIPE)
    if child_process.not_posix():
        print(f"lean_ovms: {child_process.NEEDS_POSIX}", file=sys.stderr)
        sys.exit(ExitStatus.NEVER_SERVED)
    from .commands import run  # late: --help and --version do not need it

    sys.exit(run(config))


def _command(argv: Sequence[str]) -> Config:
    """Returns the options if the server is to run; otherwise runs the command, and exits."""
    from .arguments import other_flags, parse, without_of  # late: after the engine process is started
    from .commands import commands, explain

    try:
        without = without_of(argv, os.environ)
        argv = other_flags(without).without_program(argv)
        row = commands(without).get(argv[0]) if argv else None
        if row is not None and row.reader:
            sys.exit(run_command(row, argv[1:], os.environ))
        if row is not None and row.option and {"-h", "--help"}.intersection(argv):
            explain(row)
        return parse(argv, os.environ)
    except StartError as error:
        print(f"lean_ovms: {error}", file=sys.stderr)
        sys.exit(ExitStatus.USAGE)


def run_command(row: Command, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs a command that has a function. Returns the exit status, and prints the reason of a failure to stderr."""
    from ..manifest import named

    try:
        status: int = named(row.package, row.reader)(argv, environ)
    except StartError as error:
        reason, status = str(error), ExitStatus.USAGE
    except CommandFailed as error:
        reason, status = str(error), ExitStatus.FAILED
    except KeyboardInterrupt:
        return ExitStatus.SIGNALLED + signal.SIGINT
    else:
        return status
    print(f"lean_ovms {row.word}: {reason}", file=sys.stderr)
    return status


def _exit_on_ctrl_c() -> None:
    """Makes SIGINT exit at once until the command sets its own handlers.

    A KeyboardInterrupt during an import crashes some libraries (orjson), and nothing that needs cleaning up has started
    yet.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise the parent has it ignored
        signal.signal(signal.SIGINT, lambda number, _: os._exit(ExitStatus.SIGNALLED + number))


def _open_standard_streams() -> None:
    """Opens /dev/null in place of stdin, stdout or stderr if one of them is closed.

    Otherwise the next socket would get its number and receive all that libraries print, and libuv would abort the
    process when it closes one of the three.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(STDERR, "w", closefd=False)

"""Exit statuses of the process, for supervisors; docs/cli.md and docs/deploy have them too."""

from __future__ import annotations

from ..errors import StartError, WrongOptions

OK = 0
"""A command is done, or serving was stopped."""
FAILED = 1
"""A command failed, or the server could not start for a reason that may pass (its port is in use, the network, a busy
hub): a supervisor may try again."""
USAGE = 2
"""Options that do not go together, or point to no model: the same start would fail again."""
NEVER_SERVED = 3
"""The server could not start: the same start would fail again."""
SIGNALLED = 128
"""Added to the number of the signal that stopped a command."""


def of(error: StartError) -> int:
    """Returns the status of a server that could not start."""
    if isinstance(error, WrongOptions):
        return USAGE
    return FAILED if error.temporary else NEVER_SERVED

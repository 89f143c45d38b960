"""Commands that were received and not handled yet: in the order of arrival for each client, clients in turn.

Texts are tokenized between two steps, only some in each turn of the loop; so a client with many of them would keep
everybody else's requests from being read.
"""

from __future__ import annotations

from ...util.turns import Turns
from ..protocol import Cancel, Record


class CommandQueue:
    """A queue of commands. Those without a client count as one more client; a Cancel stays behind what it cancels."""

    def __init__(self) -> None:
        self._turns: Turns[Record] = Turns()
        self._client_of: dict[int, str] = {}  # by the id of a waiting command that has a client

    def __bool__(self) -> bool:
        return bool(self._turns)

    def extend(self, commands: list[Record]) -> None:
        """Queues commands, in the order of their arrival."""
        for command in commands:
            number: int = getattr(command, "id", 0)
            if isinstance(command, Cancel):
                client = self._client_of.get(number, "")
            elif client := getattr(command, "client", ""):
                self._client_of[number] = client
            self._turns.add(client, command)

    def next(self) -> Record | None:
        """Returns the next command, removed; the next turn is another client's."""
        command = self._turns.next()
        if command is not None and not isinstance(command, Cancel):
            self._client_of.pop(getattr(command, "id", 0), None)
        return command

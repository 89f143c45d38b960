"""Commands that were received and not handled yet: in the order of arrival for each client, clients in turn.

Texts are tokenized between two steps, only some in each turn of the loop; so a client with many of them would keep
everybody else's requests from being read.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from ..protocol import Cancel, Record


class CommandQueue:
    """A queue of commands. Those without a client count as one more client; a Cancel stays behind what it cancels."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Record]] = OrderedDict()  # the next one first
        self._client_of: dict[int, str] = {}  # by the id of a command of a client that is here

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def extend(self, commands: list[Record]) -> None:
        """Queues commands, in the order of their arrival."""
        for command in commands:
            client = self._client_of.get(command.id, "") if isinstance(command, Cancel) else self._remember(command)
            if client not in self._waiting:
                self._waiting[client] = deque()
            self._waiting[client].append(command)

    def popleft(self) -> Record:
        """Returns the next command; the next turn is another client's."""
        client, commands = next(iter(self._waiting.items()))
        command = commands.popleft()
        if not commands:
            del self._waiting[client]
        elif len(self._waiting) > 1:
            self._waiting.move_to_end(client)
        if client and not isinstance(command, Cancel):
            self._client_of.pop(getattr(command, "id", 0), None)
        return command

    def _remember(self, command: Record) -> str:
        client: str = getattr(command, "client", "")
        if client:
            self._client_of[getattr(command, "id", 0)] = client
        return client

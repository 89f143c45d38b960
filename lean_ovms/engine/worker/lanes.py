"""Commands that were received and not handled yet: in the order of arrival for each client, clients in turn.

Texts are tokenized between two steps, only some in each turn of the loop; so a client with many of them would keep
everybody else's requests from being read.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from ..protocol import Cancel, Record


class Lanes:
    """A queue of commands. Those without a client are a lane, too; a Cancel stays behind what it cancels."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, deque[Record]] = OrderedDict()  # the next one first
        self._lane_of: dict[int, str] = {}  # by the id of a command of a client that is here

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def extend(self, commands: list[Record]) -> None:
        """Queue commands, in the order of their arrival."""
        for command in commands:
            lane = self._lane_of.get(command.id, "") if isinstance(command, Cancel) else self._remember(command)
            if lane not in self._lanes:
                self._lanes[lane] = deque()
            self._lanes[lane].append(command)

    def popleft(self) -> Record:
        """The next command; the next turn is another client's."""
        lane, commands = next(iter(self._lanes.items()))
        command = commands.popleft()
        if not commands:
            del self._lanes[lane]
        elif len(self._lanes) > 1:
            self._lanes.move_to_end(lane)
        if lane and not isinstance(command, Cancel):
            self._lane_of.pop(getattr(command, "id", 0), None)
        return command

    def put_back(self, command: Record) -> None:
        """A command that is not done yet: the next one of its client."""
        self._lanes.setdefault(self._remember(command), deque()).appendleft(command)

    def _remember(self, command: Record) -> str:
        lane: str = getattr(command, "client", "")
        if lane:
            self._lane_of[getattr(command, "id", 0)] = lane
        return lane

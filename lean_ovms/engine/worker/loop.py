"""The loop of the engine child, for any task: read commands, let the task handle them and step, write records.

It waits for a command only when the task is idle. One frame is sent per step, and one before it if there were replies
to commands, so that the front end learns of an acceptance without waiting for the step.
"""

from __future__ import annotations

import threading

from ...util import memory
from ..protocol import Ping, Pong, Record, Submit
from ..task import Task
from .command_queue import CommandQueue
from .transport import Transport


class Worker:
    """Serves one task to one front end."""

    def __init__(self, task: Task, transport: Transport) -> None:
        self.task = task
        self.transport = transport
        self._commands = CommandQueue()
        self._had_images = False  # since memory was trimmed

    def run(self) -> None:
        """Works until the front end closes the connection. Raises errors.EngineLost: the process must be replaced."""
        try:
            while self.turn():
                pass
        finally:
            self.flush()

    def turn(self) -> bool:
        """Makes one turn of the loop; returns False when the connection is closed."""
        task = self.task
        if self._had_images and task.idle and not self._commands:
            self._trim()
        commands = self.transport.receive(wait=task.idle and not self._commands)
        if commands is None:
            return False
        if len(commands) == 1 and not self._commands and task.accepts_commands:
            self._handle(commands[0])  # as most often: there is nothing to take turns with
        elif commands or self._commands:
            self._commands.extend(commands)
            while task.accepts_commands and (command := self._commands.next()) is not None:
                self._handle(command)
        task.admit()
        if task.out:
            self.flush()
        if not task.idle:
            task.step()
            self.flush()
        return True

    def flush(self) -> None:
        """Sends the task's records as one frame."""
        if self.task.out:
            self.transport.send(self.task.out)
            self.task.out.clear()

    def _handle(self, command: Record) -> None:
        if isinstance(command, Ping):
            self.task.out.append(Pong(command.id, self.task.stats()))
            return
        self.task.handle(command)
        self._had_images |= isinstance(command, Submit) and bool(command.images)

    def _trim(self) -> None:
        """Returns the memory of pixels and encoders to the system, in a thread: hundreds of MB after some images."""
        self._had_images = False
        threading.Thread(target=memory.trim, name="trim", daemon=True).start()

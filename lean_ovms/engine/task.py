"""The base class of tasks, each of which is one kind of work on one loaded model, and the loop that runs a task.

A new task is a subclass in a feature, whose TaskRow names the function that loads it. The loop knows only the base
class: it reads commands, has the task handle them and compute, and writes records. It waits for a command only if the
task is idle, or another thread computes. One frame is sent per step, and others for replies to commands, so that the
front end learns of an acceptance without waiting for the step.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from ..errors import TooManyRequests, for_client, requests_waiting
from ..types.engine import ModelInfo, Vocabulary
from ..util import resources
from ..util.round_robin import RoundRobin
from .protocol import Cancel, Decoder, Ping, Pong, Ready, Record, Refused, Submit, attachments, encode

RECEIVE_BYTES = 1 << 18
NO_VOCABULARY = Vocabulary(pieces=[], exact=False)


def busy(why: str, retry_after_s: int = 1) -> TooManyRequests:
    """Returns the error for a command that is refused because too many wait; `why` begins its message."""
    return TooManyRequests(f"{why}; please try again later", retry_after_s=retry_after_s)


def check_room(waiting: int, most: int, of_client: int, most_of_client: int) -> None:
    """Raises TooManyRequests for a command if as many requests wait as may wait, of all clients or of its own."""
    if waiting >= most:
        raise busy(requests_waiting(most))
    if of_client >= most_of_client:
        raise busy(requests_waiting(most_of_client, " of this client"))


class Task(ABC):
    """Does one kind of work on one loaded model, in the steps of the worker's loop, and only in its thread."""

    def __init__(self, model_info: ModelInfo, vocabulary: Vocabulary = NO_VOCABULARY) -> None:
        self.out: list[Record] = []
        """The records for the front end. The loop sends and clears the list, which is always the same object."""
        self._model_info = model_info
        self._vocabulary = vocabulary

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether there is nothing to compute."""

    @property
    def computing(self) -> bool:
        """Whether another thread computes, and will call `Transport.wake`, so that `step` would only wait for it."""
        return False

    @property
    def accepts_commands(self) -> bool:
        """Whether another command may be handled before the next step; not if those since `admit` took long."""
        return True

    def ready(self) -> Ready:
        """Describes the loaded model to the front end."""
        return Ready(asdict(self._model_info), self._vocabulary.to_wire())

    def handle(self, command: Record) -> None:
        """Handles a command, and adds its replies to `out`."""
        try:
            self._handle(command)
        except Exception as error:  # an error in one request must not end the loop
            self._refuse(command, error)

    @abstractmethod
    def _handle(self, command: Record) -> None:
        """Handles a command. An exception becomes a Refused record."""

    def _refuse(self, command: Record, error: Exception) -> None:
        """Adds the reply to a command that failed."""
        number: int = getattr(command, "id", 0)
        self.out.append(Refused(number, for_client(error, f"{command.kind} {number}").to_wire()))

    def admit(self) -> None:  # noqa: B027 - nothing is to be started where every step takes the next item
        """Starts waiting work. It is called after the commands of a loop turn, before the step."""

    @abstractmethod
    def step(self) -> None:
        """Computes a step, and adds the results to `out`. Raises errors.EngineLost if the process must be replaced."""

    def close(self) -> None:  # noqa: B027 - most have nothing to keep
        """Saves what should survive the process; called last, when the connection is closed."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Returns the fields of types.engine.EngineStats."""


class Transport:
    """The engine process's end of the pipe to the front end, which transfers whole records over a blocking socket.

    Waiting is one poll without a timeout, which costs no CPU; between two steps a poll of 0.4 us finds out whether
    anything has arrived.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._decoder = Decoder()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._poll.register(self._wake_reader, select.POLLIN)

    def receive(self, wait: bool) -> list[Record] | None:
        """Returns the records that have arrived; None if the other end is closed.

        With `wait`, it blocks until at least one record arrives or `wake` is called.
        """
        records: list[Record] = []
        while ready := self._poll.poll(None if wait and not records else 0):
            for number, _ in ready:
                if number == self._wake_reader:
                    os.read(self._wake_reader, RECEIVE_BYTES)
                    wait = False
                    continue
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    return None
                records += self._decoder.feed(data)
        return records

    def know(self, records: Iterable[type[Any]]) -> None:
        """Adds a task's record classes to those that can be received."""
        self._decoder.know(records)

    def wake(self) -> None:
        """Ends a waiting `receive`, the current one or the next. It is thread-safe."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._wake_writer, b"!")

    def send(self, records: list[Record]) -> None:
        """Sends records as one frame. Raises OSError if the other end is closed."""
        frame = encode(records)
        parts = attachments(records)
        self._socket.sendall(b"".join([*parts, frame]) if parts else frame)


class CommandQueue:
    """The commands that are not handled yet. Clients take turns; the commands of each are in the order of arrival.

    Only some texts are tokenized for each step, so a client with many of them would otherwise delay the requests of all
    others. Commands without a client count as another client. A Cancel stays after the command that it cancels.
    """

    def __init__(self) -> None:
        self._turns: RoundRobin[Record] = RoundRobin()
        self._client_of: dict[int, str] = {}  # by the id of a waiting command that has a client

    def __bool__(self) -> bool:
        return bool(self._turns)

    def extend(self, commands: list[Record]) -> None:
        """Queues commands in the order of their arrival."""
        for command in commands:
            number: int = getattr(command, "id", 0)
            if isinstance(command, Cancel):
                client = self._client_of.get(number, "")
            elif client := getattr(command, "client", ""):
                self._client_of[number] = client
            self._turns.add(client, command)

    def next(self) -> Record | None:
        """Removes and returns the next command, or None; the next turn is another client's."""
        command = self._turns.next()
        if command is not None and not isinstance(command, Cancel):
            self._client_of.pop(getattr(command, "id", 0), None)
        return command


class Worker:
    """Serves one task to one front end."""

    def __init__(self, task: Task, transport: Transport, check: Callable[[], None] = lambda: None) -> None:
        """Creates a worker without commands.

        Args:
            task: The task.
            transport: The pipe to the front end.
            check: Called before commands are handled; it may raise errors.EngineLost.
        """
        self._check = check
        self.task = task
        self.transport = transport
        self._commands = CommandQueue()
        self._had_images = False  # whether images were computed since memory was trimmed

    def run(self) -> None:
        """Works until the front end closes the connection. Raises errors.EngineLost."""
        try:
            while self.turn():
                pass
        finally:
            self.flush()

    def turn(self) -> bool:
        """Runs one turn of the loop. Returns False if the connection is closed."""
        task = self.task
        if self._had_images and task.idle and not self._commands:
            self._had_images = False  # hundreds of MB of pixels and encoders go back to the system
            threading.Thread(target=resources.trim, name="trim", daemon=True).start()
        computing = task.computing
        handling = bool(self._commands) and (task.idle or task.accepts_commands)
        commands = self.transport.receive(wait=not handling and (task.idle or computing))
        if commands is None:
            return False
        if commands:
            self._check()
        if computing and not task.computing:  # over, or overdue: an answer before its end would hide a hang
            self._commands.extend(commands)
            task.step()
            self.flush()
            return True
        if len(commands) == 1 and not self._commands and task.accepts_commands:
            self._handle(commands[0])  # the usual case: there are no other clients to take turns with
        elif commands or self._commands:
            self._commands.extend(commands)
            while task.accepts_commands and (command := self._commands.next()) is not None:
                self._handle(command)
        task.admit()
        self.flush()
        if not (task.idle or task.computing):
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

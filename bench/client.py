"""The load: streaming chat requests over raw sockets, in a separate process.

It shares the cores with the server, so it does as little as possible: epoll in place of an event loop, no JSON, no HTTP
library. It searches answers for the first word of content, counts the `data:` lines, and reads the usage from the last
kilobyte, in about 4 us per chunk. It works with every OpenAI-compatible server.

python -m bench.client reads one Work per line, with the server's host, port and path and further fields of the body,
and answers with its Outcome.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import time
from dataclasses import asdict

from bench.processes import answering
from bench.work import Outcome, Work

CONTENT = re.compile(rb'"(?:content|reasoning_content|text)": ?"[^"]')
COMPLETION = re.compile(rb'"completion_tokens": ?(\d+)')
PROMPT = re.compile(rb'"prompt_tokens": ?(\d+)')
END = b"\r\n0\r\n\r\n"
TAIL = 1024
SILENT_S = 300.0
"""Seconds without a byte, while requests are waiting, after which the server counts as hanging."""
READ_BYTES = 1 << 14
"""The size of reads. Python allocates a buffer of this size for each, and 256 KB would cost more than everything else
here."""


class HungUp(Exception):
    """Raised if the server has closed a connection."""


class Lane:
    """A keep-alive connection that carries one request at a time."""

    __slots__ = ("began", "events", "first", "last", "payload", "sized", "sock", "status", "tail", "target", "used")

    def __init__(self, address: tuple[str, int], target: str) -> None:
        self.target = target
        self.used = 0
        self.payload = b""
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reset(0.0)

    def reset(self, began: float) -> None:
        """Clears the state of the previous request."""
        self.began = self.last = began
        self.first = 0.0
        self.events = self.status = self.sized = 0
        self.tail = b""

    def send(self, payload: bytes, began: float) -> None:
        """Sends a request. If the server has closed the connection, the next read will tell."""
        self.reset(began)
        self.used += 1
        self.payload = payload
        with contextlib.suppress(ConnectionError):
            self.sock.sendall(payload)

    @property
    def stale(self) -> bool:
        """Whether an earlier request was answered on this connection, and no byte of the next answer has arrived."""
        return self.used > 1 and not self.status

    def take(self, gaps: list[float]) -> bool:
        """Reads the bytes that have arrived.

        Args:
            gaps: Receives the seconds since the previous chunk.

        Returns:
            Whether the response is complete.

        Raises:
            HungUp: The server has closed the connection.
        """
        try:
            data = self.sock.recv(READ_BYTES)
        except ConnectionError:
            data = b""
        now = time.perf_counter()
        if not data:
            raise HungUp
        if not self.status:
            self._begin(data)
            self.last = now
        events = data.count(b"data: {")
        if events:
            if self.first:
                gaps.append(now - self.last)
            elif CONTENT.search(data):
                self.first = now
            self.last = now
            self.events += events
        self.tail = (self.tail + data)[-TAIL:] if len(data) < TAIL else data[-TAIL:]
        if self.sized > 0:
            self.last = now
            return self._whole(len(data))
        return self.tail.endswith(END)

    def _begin(self, data: bytes) -> None:
        self.status = int(data[9:12])
        head = data.partition(b"\r\n\r\n")[0]
        found = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        if found:
            self.sized = len(head) + 4 + int(found[1])

    def _whole(self, size: int) -> bool:
        self.sized -= size
        return self.sized <= 0

    def note(self, outcome: Outcome) -> None:
        """Adds the finished request to the outcome."""
        prompt, completion = PROMPT.search(self.tail), COMPLETION.search(self.tail)
        outcome.failed += self.status != 200
        outcome.events += self.events
        outcome.prompt_tokens += int(prompt[1]) if prompt else 0
        outcome.tokens.append(int(completion[1]) if completion else self.events)
        outcome.total.append(self.last - self.began)
        outcome.first.append((self.first or self.last) - self.began)


class Load:
    """Performs one Work with one server."""

    def __init__(self, work: Work, address: tuple[str, int], payloads: list[bytes], target: str) -> None:
        self._work, self._payloads = work, payloads
        self._outcome = Outcome()
        self._poll = select.epoll()
        self._lanes: dict[int, Lane] = {}
        self._address, self._target = address, target
        self._idle = [self._lane() for _ in range(work.concurrency)]
        self._sent = self._done = 0

    def _lane(self) -> Lane:
        lane = Lane(self._address, self._target)
        self._lanes[lane.sock.fileno()] = lane
        self._poll.register(lane.sock, select.EPOLLIN)
        return lane

    def _leave(self, lane: Lane) -> None:
        """Handles a connection that the server has closed after an answer: uvicorn does so after five seconds,
        llama-server at once.

        If a request was sent while the server closed it, the request is sent again on a new connection. Its time counts
        from the first attempt.
        """
        waiting = lane not in self._idle
        if waiting and not lane.stale:
            raise SystemExit(f"the server hung up during {self._target}")
        if not waiting:
            self._idle.remove(lane)
        del self._lanes[lane.sock.fileno()]
        self._poll.unregister(lane.sock)
        lane.sock.close()
        if waiting:
            self._lane().send(lane.payload, lane.began)

    def run(self) -> Outcome:
        """Performs the work. Ends the process if the server does not answer."""
        try:
            return self._run()
        finally:
            for lane in self._lanes.values():
                lane.sock.close()
            self._poll.close()

    def _run(self) -> Outcome:
        outcome, poll = self._outcome, self._poll
        cpu, self._start = time.process_time(), time.perf_counter()
        while (wait := self._begin_due()) is not None:
            ready = poll.poll(wait if wait >= 0 else SILENT_S)
            if not ready and wait < 0:
                raise SystemExit(f"no byte came for {SILENT_S:g} s from {self._target} on port {self._address[1]}")
            for number, _ in ready:
                lane = self._lanes[number]
                try:
                    done = lane.take(outcome.gaps)
                except HungUp:
                    self._leave(lane)
                    continue
                if done:
                    lane.note(outcome)
                    self._done += 1
                    self._idle.append(lane)
        outcome.wall_s, outcome.cpu_s = time.perf_counter() - self._start, time.process_time() - cpu
        return outcome

    def _begin_due(self) -> float | None:
        """Sends the requests that are due.

        Returns:
            Seconds until the next request is due, -1 if a response must end first, None if all are done.
        """
        arrivals, seconds = self._work.arrivals, self._work.seconds
        while self._sent < len(self._payloads):
            now = time.perf_counter()
            if seconds and self._sent >= self._work.concurrency and now - self._start > seconds:
                break
            if arrivals:
                due = self._start + arrivals[self._sent]
                if due > now:
                    return due - now
                lane = self._idle.pop() if self._idle else self._lane()
            elif self._idle:
                lane = self._idle.pop()
            elif len(self._lanes) < self._work.concurrency:
                lane = self._lane()
            else:
                return -1
            lane.send(self._payloads[self._sent], time.perf_counter())
            self._sent += 1
        return -1 if self._done < self._sent else None


def payload(path: str, body: dict[str, object] | None, host: str = "bench", headers: str = "") -> bytes:
    """Returns a request as bytes: POST with a JSON body, or GET if there is none."""
    if body is None:
        return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n".encode()
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def chat(prompt: str, max_tokens: int, fields: dict[str, object]) -> dict[str, object]:
    """Returns the body of a streaming chat request."""
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    messages = [{"role": "user", "content": prompt}]
    return {"messages": messages, "max_tokens": max_tokens, "temperature": 0, **stream, **fields}


def answer(question: dict) -> dict:
    """Performs one Work. The question also has the server's port and path, and optionally host, fields, headers and
    get."""
    host, port, path = question.pop("host", "127.0.0.1"), question.pop("port"), question.pop("path")
    fields, headers, get = question.pop("fields", {}), question.pop("headers", ""), question.pop("get", False)
    work = Work(**question)
    bodies = [None if get else chat(p, work.max_tokens, fields) for p in work.prompts]
    payloads = [payload(path, body, host, headers) for body in bodies]
    return asdict(Load(work, (host, port), payloads, path).run())


if __name__ == "__main__":
    answering(answer)

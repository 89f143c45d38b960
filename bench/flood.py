"""A flood of images beside a polite text chat: what the chat waits for its first token, and the server's memory.

A process sends requests with one to four plain images, of up to `side` pixels squared, on many connections of one
client; another client asks for a short text all the time, alone first, then during the flood, then afterwards. Plain
images are small files that cost as much to decode and encode as photographs.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence

from bench import figures
from bench.client import Lane, payload
from bench.processes import ROOT, Worker, answering, closing, lean_ovms, rss_mb
from bench.report import Report, options, tick

PATH = "/v3/chat/completions"
SETTLE_S = 3.0


def main(argv: Sequence[str]) -> None:
    """Alone, flood, afterwards."""
    parser = options("flood", __doc__)
    parser.add_argument("--model", default=str(ROOT / "tests/data/colours"), help="a folder with a vision model")
    parser.add_argument("--connections", type=int, default=40, help="of the flood")
    parser.add_argument("--side", type=int, default=3000, help="largest side of an image in pixels")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the flood, and of the chats alone")
    parser.add_argument("--server_option", action="append", default=[], help="for the server: --name=value")
    args = parser.parse_args(argv)
    report = Report("flood", args)
    server = lean_ovms([f"--model_path={args.model}", "--trusted_proxies=127.0.0.1", *args.server_option])
    flood = Worker("flood")
    with closing(server, flood), report.progress(3, "flood") as bar:
        pids = server.pids  # later the heaviest child may be a decoder
        _chats(server.port, 2.0)  # warm-up
        for phase, seconds in (("alone", args.seconds), ("flood", args.seconds), ("afterwards", args.seconds / 2)):
            tick(bar, phase)
            answers: list[dict[str, object]] = []
            ask = {"port": server.port, "connections": args.connections, "side": args.side, "seconds": seconds}
            doing = threading.Thread(target=lambda ask=ask, to=answers: to.append(flood.ask(ask | {"seed": args.seed})))
            peaks = Peaks(pids)
            if phase == "flood":
                doing.start()
            times = _chats(server.port, seconds)
            if phase == "flood":
                doing.join()
            peaks.stop()
            if phase == "afterwards":
                time.sleep(SETTLE_S)
            report.row(
                phase=phase,
                chats=len(times),
                first_token_ms=figures.quantiles(times),
                image_answers=json.dumps(answers[0]["statuses"]) if answers else "",
                **{f"{name}_peak_mb": round(most) for name, most in peaks.most.items()},
                **{f"{name}_mb": round(rss_mb(pid)) for name, pid in pids.items()},
            )
    report.table("a text chat of another client, and resident memory", COLUMNS)


COLUMNS = (
    "phase",
    "chats",
    "first_token_ms",
    "image_answers",
    "front_peak_mb",
    "engine_peak_mb",
    "front_mb",
    "engine_mb",
)


class Peaks:
    """The most resident memory of each process until `stop`, looked at every 20 ms."""

    def __init__(self, pids: dict[str, int]) -> None:
        self.most = dict.fromkeys(pids, 0.0)
        self._pids = pids
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stopped.wait(0.02):
            for name, pid in self._pids.items():
                self.most[name] = max(self.most[name], rss_mb(pid))

    def stop(self) -> None:
        """No more looks."""
        self._stopped.set()
        self._thread.join()


def _chats(port: int, seconds: float) -> list[float]:
    """Seconds to the first token of one short chat after the other."""
    times, end = [], time.monotonic() + seconds
    message = {"role": "user", "content": "What can you do?"}
    body = {"messages": [message], "stream": True, "max_tokens": 8, "temperature": 0}
    request = payload(PATH, body, headers="X-Forwarded-For: 192.0.2.1\r\n")
    lane = Lane(("127.0.0.1", port), PATH)
    with contextlib.closing(lane.sock):
        lane.sock.settimeout(120)
        while time.monotonic() < end:
            lane.send(request, time.perf_counter())
            lane.finish()
            assert lane.first, lane.tail
            times.append(lane.first - lane.began)
            time.sleep(0.05)
    return times


def flood(question: dict) -> dict:
    """Send images on all connections for so long; the statuses of the answers."""
    rng = random.Random(question["seed"])
    bodies = [_body(rng, question["side"]) for _ in range(12)]
    statuses: Counter[int] = Counter()
    end = time.monotonic() + question["seconds"]
    threads = [
        threading.Thread(target=_send, args=(question["port"], bodies, number, end, statuses))
        for number in range(question["connections"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"statuses": dict(statuses)}


def _body(rng: random.Random, side: int) -> bytes:
    from PIL import Image

    content: list[dict] = [{"type": "text", "text": "Describe the images."}]
    for _ in range(rng.randrange(1, 5)):
        out = io.BytesIO()
        size, colour = (rng.randrange(side // 2, side), rng.randrange(side // 2, side)), rng.randrange(1 << 24)
        Image.new("RGB", size, (colour >> 16, colour >> 8 & 255, colour & 255)).save(out, "PNG", compress_level=1)
        url = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
        content.append({"type": "image_url", "image_url": {"url": url}})
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 16}).encode()


def _send(port: int, bodies: list[bytes], number: int, end: float, statuses: Counter[int]) -> None:
    headers = {"Content-Type": "application/json", "X-Forwarded-For": "198.51.100.1"}
    while time.monotonic() < end:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            connection.request("POST", PATH, bodies[number % len(bodies)], headers)
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1
            if answer.status != 200:
                time.sleep(0.2)
        finally:
            connection.close()
        number += 1


if __name__ == "__main__":
    answering(flood)

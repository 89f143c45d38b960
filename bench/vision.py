"""An image's first token, and what eight text streams wait for their tokens meanwhile: two pipelines in turns.

Each image is new to the server: noise, as PNG. The streams run alone first, then while another client asks about one
image after the other.
"""

from __future__ import annotations

import base64
import contextlib
import io
import random
import statistics
import threading
import time
from collections.abc import Sequence

from bench import figures
from bench.client import Lane, payload
from bench.processes import ROOT, Server, Worker, closing, lean_ovms
from bench.report import Report, options, tick
from bench.work import Work, prompts, turns

PATH = "/v3/chat/completions"
PIPELINES = ("PAGED", "VLM_CB")


def main(argv: Sequence[str]) -> None:
    """A row for each pipeline."""
    parser = options("vision", __doc__)
    parser.add_argument("--model", default=str(ROOT / "tests/data/colours"), help="a folder with a vision model")
    parser.add_argument("--side", type=int, default=448, help="of the images, in pixels")
    parser.add_argument("--images", type=int, default=20, help="one after the other, in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8, help="of text, at once")
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    args = parser.parse_args(argv)
    report, rng = Report("vision", args), random.Random(args.seed)
    with contextlib.ExitStack() as stack, report.progress((args.rounds + 1) * len(PIPELINES), "vision") as bar:
        load = Worker("client")
        stack.enter_context(closing(load))
        servers = {}
        for name in PIPELINES:
            servers[name] = lean_ovms([f"--model_path={args.model}", f"--pipeline_type={name}"])
            stack.enter_context(closing(servers[name]))
            for _ in range(3):
                first_token(servers[name], picture(rng, args.side))
        found: dict[str, dict[str, list[float]]] = {name: {} for name in PIPELINES}
        for number, name in turns(PIPELINES, args.rounds + 1):
            tick(bar, name)
            images = [picture(rng, args.side) for _ in range(args.images)]
            figure = {"first_token_ms": statistics.median(first_token(servers[name], image) for image in images)}
            for case, count in (("alone", 0), ("with_images", args.images)):
                asking = Asking(servers[name], [picture(rng, args.side) for _ in range(count)])
                texts = prompts(args.seed + number, args.streams, 20)
                work = Work(prompts=texts, max_tokens=args.tokens, concurrency=args.streams)
                outcome = load.run(work, port=servers[name].port, path=PATH, fields={"ignore_eos": True})
                asking.stop()
                assert not outcome.failed
                for mark in SHOWN:
                    figure[f"itl_{case}_{mark}_ms"] = figures.quantile(outcome.gaps, figures.MARKS[mark])
            for column, value in figure.items() if number else ():  # the first round is the warm-up
                found[name].setdefault(column, []).append(value * 1e3)
    for name in PIPELINES:
        report.row(who=name, **{column: figures.spread(values) for column, values in found[name].items()})
    report.table(f"an image of {args.side} x {args.side} pixels, and {args.streams} text streams", COLUMNS)


SHOWN = ("p50", "p99")
COLUMNS = (
    *("who", "first_token_ms"),
    *(f"itl_{case}_{mark}_ms" for case in ("alone", "with_images") for mark in SHOWN),
)


class Asking:
    """Asks about one image after the other, until `stop`."""

    def __init__(self, server: Server, bodies: list[dict[str, object]]) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(server, bodies))
        self._thread.start()

    def _ask(self, server: Server, bodies: list[dict[str, object]]) -> None:
        for body in bodies:
            if self._stopped.is_set():
                return
            first_token(server, body)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def picture(rng: random.Random, side: int) -> dict[str, object]:
    """The body of a chat request with an image."""
    from PIL import Image

    out = io.BytesIO()
    Image.frombytes("RGB", (side, side), rng.randbytes(3 * side * side)).save(out, "PNG", compress_level=0)
    url = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    content = [{"type": "text", "text": "describe"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"messages": [{"role": "user", "content": content}], "stream": True, "max_tokens": 4, "temperature": 0}


def first_token(server: Server, body: dict[str, object]) -> float:
    """Seconds from the request's end to the first token of its answer, which is read to its end."""
    lane = Lane(("127.0.0.1", server.port), PATH)
    with contextlib.closing(lane.sock):
        lane.sock.settimeout(120)
        lane.send(payload(PATH, body), 0.0)
        began = time.perf_counter()
        lane.finish()
    return (lane.first or lane.last) - began

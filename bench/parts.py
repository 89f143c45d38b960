"""Measures each step between the bytes of a request and the bytes of a token by itself, without I/O, in a warm loop.

It reports the time of one call in us, as the best and the median of repeated loops. After a pause, with cold caches,
the same steps take two to three times as long.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import orjson

from bench import client, path
from bench.report import Report, options
from bench.work import prompts
from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.engine import protocol
from lean_ovms.engine.generation import fake_tokenizer
from lean_ovms.engine.generation.task import GenerationTask
from lean_ovms.engine.task import Worker
from lean_ovms.features.chat import api as chat
from lean_ovms.features.model_families.arrange import ProbedTemplate
from lean_ovms.features.model_families.registry import registry
from lean_ovms.features.scripted_engine.child.backend import ScriptedEngine
from lean_ovms.models.generation import OutputDecoder
from lean_ovms.models.text_model import TextModel
from lean_ovms.repository.model_dir import read as read_model_dir
from lean_ovms.text.decode.detokenizer import Detokenizer
from lean_ovms.text.template.chat_template import ChatTemplate, TemplateSettings
from lean_ovms.transports.http11.protocol import ServerProtocol
from lean_ovms.types import ChatPrompt, Request, Response, SamplingParams, Text, Usage

LOOPS = 9
Part = tuple[str, Callable[[], object], int]
"""The name of a step, the call to time, and the number of units (tokens, records) that one call handles."""


def main(argv: Sequence[str]) -> None:
    """Measures all steps and prints the table."""
    parser = options("parts", __doc__)
    parser.add_argument("--ms", type=float, default=40.0, help="length of one loop in ms")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of the whole path")
    args = parser.parse_args(argv)
    report = Report("parts", args)
    gc.collect()
    gc.freeze()  # keeps the collection before each loop short
    for name, call, units in parts(args):
        best, median = timed(call, args.ms / 1e3)
        report.row(case=name, best_us=round(best / units, 3), median_us=round(median / units, 3), per_call=units)
    for streams in (1, 8, 64):
        cost = path.chunk_us(streams, args.rounds)
        report.row(case=f"a chunk, whole path without sockets, {streams} streams", best_us=round(cost, 2))
    cost = path.request_us(args.rounds)
    report.row(case="a request of one token, whole path without sockets", best_us=round(cost, 1))
    gc.unfreeze()
    report.table("one call; per token or record where a call handles several", ("case", "best_us", "median_us"))


def timed(call: Callable[[], object], loop_s: float) -> tuple[float, float]:
    """Returns the best and the median time of a call in us, over LOOPS loops of about `loop_s` seconds each."""
    call()
    began = time.perf_counter()
    call()
    count = max(1, int(loop_s / max(1e-7, time.perf_counter() - began)))
    times = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(LOOPS):
            began = time.perf_counter()
            for _ in range(count):
                call()
            times.append((time.perf_counter() - began) / count * 1e6)
    finally:
        gc.enable()
    return min(times), statistics.median(times)


def parts(args) -> Iterator[Part]:
    """Yields all steps in the order in which a request passes them."""
    body = client.chat(prompts(args.seed, 1, 40)[0], 64, {"model": "demo"})
    yield from http(body)
    yield from parsing(body)
    yield from pipe()
    yield from worker()
    yield from text()
    yield from chunks()


def http(body: dict) -> Iterator[Part]:
    """Yields the reading and writing of HTTP."""
    headers = "User-Agent: OpenAI/Python 2.0\r\nAccept: application/json\r\nAuthorization: Bearer none\r\n"
    data = client.payload("/v3/chat/completions", body, "localhost:8000", headers)
    http11 = ServerProtocol(Config())
    answer = Response(200, [("Content-Type", "text/event-stream"), ("X-Request-Id", "0" * 32)], b"ok")

    def request() -> None:
        http11.feed(data)
        assert http11.next_request() is not None
        http11.start_response(answer)

    yield "HTTP: request parsed, response head written", request, 1
    piece = b"x" * 230
    yield "HTTP: one chunk framed", lambda: http11.chunk(piece), 1


def parsing(body: dict) -> Iterator[Part]:
    """Yields the reading of JSON and fields, and the rendering of the template."""
    data = orjson.dumps(body)
    app = App(Config(), [TextModel(Config(model_name="demo"))])
    request = Request("POST", "/v3/chat/completions", body=data)
    yield "JSON parsed", lambda: orjson.loads(data), 1
    yield "fields read (JSON included)", lambda: chat.parse_chat(orjson.loads(request.body), app.services), 1
    directory = read_model_dir(Config())
    template = ChatTemplate.load(directory, eos_token="<|im_end|>", settings=TemplateSettings(reader=ProbedTemplate))
    prompt = ChatPrompt(body["messages"])
    yield "template rendered", lambda: template.render(prompt), 1


def pipe() -> Iterator[Part]:
    """Yields the writing and reading of frames between the engine process and the front end."""
    for count in (1, 64):
        records: list[protocol.Record] = [protocol.Tokens(n, 0, [n], None, None) for n in range(count)]
        frame, decoder = protocol.encode(records), protocol.Decoder()
        yield f"frame of {count} records written", lambda records=records: protocol.encode(records), count
        yield f"frame of {count} records read", lambda d=decoder, frame=frame: d.feed(frame), count


class _Pipe:
    """A transport without a socket, which drops what is sent."""

    def __init__(self) -> None:
        self.commands: list[protocol.Record] = []

    def receive(self, wait: bool) -> list[protocol.Record] | None:
        """Returns the commands that were put into the list, and clears it."""
        found, self.commands = self.commands, []
        return found

    def send(self, records: list[protocol.Record]) -> None:
        """Encodes the records as if there were a socket."""
        protocol.encode(records)


def worker() -> Iterator[Part]:
    """Yields the engine process's own work for a request of one token: it accepts the request, and sends the token."""
    backend = ScriptedEngine(max_running=16)
    transport = _Pipe()
    limits = Config(max_queued_requests=64)
    child = Worker(GenerationTask(backend, limits), transport)  # type: ignore[arg-type]
    sampling = asdict(SamplingParams(max_tokens=1, temperature=0.0))
    numbers = itertools.count(1)

    def request() -> None:
        number = next(numbers)
        submit = protocol.Submit(number, "hello", False, None, False, sampling, client="10.0.0.1", group=number)
        transport.commands.append(submit)
        child.turn()
        while not child.task.idle:
            child.turn()

    yield "the engine child: a request of one token, with the scripted engine", request, 1


def text() -> Iterator[Part]:
    """Yields the conversion of ids to text, and of text to events."""
    vocabulary = fake_tokenizer.vocabulary()
    for count in (1, 8):
        detokenizer, ids = Detokenizer(vocabulary, True), [97 + n for n in range(count)]
        yield f"detokenized, {count} at a time", lambda d=detokenizer, ids=ids: d.feed(ids), count
    parsers = registry()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    for name in parsers.reasoning_names:
        parser = parsers.make(None, name)
        yield f"reasoning parser {name}: a word", lambda p=parser: p.feed(" word"), 1
    for name in parsers.tool_names:
        parser = parsers.make(name, None, tools=tools)
        yield f"tool parser {name}: a word", lambda p=parser: p.feed(" word"), 1


def chunks() -> Iterator[Part]:
    """Yields the conversion of an engine's record to the bytes of a chunk."""
    app = App(Config(), [TextModel(Config(model_name="demo"))])
    parsed = chat.parse_chat(client.chat("hello", 64, {"model": "demo"}), app.services)
    renderer = chat.ChatRenderer(parsed, SimpleNamespace(usage=Usage(), prompt_ids=[]))
    detokenizer = Detokenizer(fake_tokenizer.vocabulary(), True)
    absent: dict[str, Any] = dict.fromkeys(("window", "stops", "parser"))
    absent |= dict.fromkeys(("stop_ids", "special"), frozenset[int]())
    decoder = OutputDecoder(index=0, detokenizer=detokenizer, skip_special=True, min_tokens=0, **absent)
    record = protocol.Tokens(1, 0, [97], None, None)
    delta = decoder.decode(record, ["word"])
    assert delta.events == [Text("word")]
    yield "a record to a delta", lambda: decoder.decode(record, ["word"]), 1
    yield "a delta to a chunk", lambda: renderer.deltas([delta]), 1

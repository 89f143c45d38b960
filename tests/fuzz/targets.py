"""Functions that guided fuzzing calls with any bytes. Each checks one promise, and raises an exception if it is broken.

test_guided.py replays the corpus in tests/fuzz/corpus; guided.py searches for more input.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import orjson

from lean_ovms.api.fields import read
from lean_ovms.config import Config
from lean_ovms.engine import protocol
from lean_ovms.errors import BadRequest
from lean_ovms.features.media_files.audio.decode import decode
from lean_ovms.features.media_files.audio.formats import WAV, AudioLimits, recognise
from lean_ovms.features.model_families.registry import registry
from lean_ovms.features.speech.api.fields import TRANSCRIPTIONS
from lean_ovms.features.uploads.forms import MAX_PARTS, Form, body_of, read_form
from lean_ovms.features.websocket.types import WebSocketMessage
from lean_ovms.transports.http11.protocol import CONTINUE, Phase, ServerProtocol
from lean_ovms.types import Event, Reasoning, Request, Response, Text, ToolCallDelta, ToolCallStart
from lean_ovms.util.spool import Spool
from tests.forms import encoded
from tests.recordings import wav
from tests.transports.http11.fakes import undated

CORPUS = Path(__file__).parent / "corpus"
CONFIG = Config(max_header_bytes=1024, max_body_bytes=1024)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
FAMILIES = sorted(registry().rows)


def session(data: bytes) -> None:
    """Bytes of a client become requests, or one error that ends the connection, independent of cuts.

    The first byte determines where the rest is cut.
    """
    place, data = data[0] if data else 0, data[1:]
    whole = _served([data])
    at = place * len(data) // 256
    assert _served([data[:at], data[at:]]) == whole
    assert _served([data[at : at + 1] for at in range(len(data))]) == whole


def _served(pieces: list[bytes]) -> tuple[list[Request], list[bytes], Phase]:
    requests, refusals, phase = served(pieces, CONFIG)
    assert len(refusals) <= 1
    assert not refusals or (phase is Phase.CLOSED and refusals[0][9:10] in b"45")
    assert all(len(request.body) <= CONFIG.max_body_bytes for request in requests)
    return requests, refusals, phase


def served(
    pieces: list[bytes], config: Config, answer: Callable[[], Response] = lambda: Response(204)
) -> tuple[list[Request], list[bytes], Phase]:
    """Returns every request (answered at once), every refusal without its date, and the final state of the session."""
    session = ServerProtocol(config)
    requests: list[Request] = []
    refusals: list[bytes] = []
    for piece in pieces:
        session.feed(piece)
        while True:
            request = session.next_request()
            if refusal := undated(session.take_outgoing()).replace(CONTINUE, b""):
                refusals.append(refusal)
            if request is not None:
                requests.append(request)
                session.start_response(answer())
            elif not session.has_more:
                break
    return requests, refusals, session.phase


def frames(data: bytes) -> None:
    """Bytes of an engine child become records or a FrameError, independent of cuts. The first byte determines the
    cut."""
    place, data = data[0] if data else 0, data[1:]
    at = place * len(data) // 256
    whole = _decoded([data])
    assert _decoded([data[:at], data[at:]]) == whole
    if isinstance(whole, list) and whole:
        _decoded([protocol.encode(whole)])


def _decoded(pieces: list[bytes]) -> list[protocol.Record] | str:
    decoder = protocol.Decoder()
    records: list[protocol.Record] = []
    try:
        for piece in pieces:
            records += decoder.feed(piece)
    except protocol.FrameError:
        return "broken"
    return records


def scanner(data: bytes) -> None:
    """Any text of a model becomes events, independent of cuts.

    The first byte selects the parser, the second the size of the pieces.
    """
    if len(data) < 3:
        return
    family, size = FAMILIES[data[0] % len(FAMILIES)], 1 + data[1] % 16
    text = data[2:].decode("utf-8", "replace")
    whole = _told(family, [text])
    assert _told(family, [text[at : at + size] for at in range(0, len(text), size)]) == whole
    for _, arguments in whole[2]:
        assert isinstance(arguments, str)


def _told(family: str, pieces: list[str]) -> tuple[str, str, list[list[str]]]:
    row = registry().rows[family]
    parser = registry().make(family if row.tools else None, family if row.reasoning else None, tools=TOOLS)
    events: list[Event] = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    calls = [[event.name, ""] for event in events if isinstance(event, ToolCallStart)]
    for event in events:
        if isinstance(event, ToolCallDelta):
            calls[event.index][1] += event.text
    content = "".join(event.text for event in events if isinstance(event, Text))
    return content, "".join(event.text for event in events if isinstance(event, Reasoning)), calls


def form(data: bytes) -> None:
    """A body that claims to be a form becomes parts with values for fields, or one error; a file is a part of the body.

    It is the same in memory and in a file.
    """
    body = data.replace(b"~", b"\r\n--b")
    spool = Spool()
    spool.write(memoryview(body))
    headers = {"content-type": "multipart/form-data; boundary=b"}
    in_memory, in_a_file = Request("POST", "/", headers=headers, body=body), Request("POST", "/", headers=headers)
    in_a_file.spool = spool
    try:
        assert _form(in_memory) == _form(in_a_file)
    finally:
        spool.close()


def _form(request: Request) -> object:
    try:
        found = read_form(request)
    except BadRequest as error:
        return str(error)
    if request.spool is None:
        _fields(found, request)
    return found.values, [
        (name, part.name, bytes(part.data[:])) for name, parts in found.files.items() for part in parts
    ]


def _fields(found: Form, request: Request) -> None:
    parts = [part for of_name in found.files.values() for part in of_name]
    assert len(found.values) + len(parts) <= MAX_PARTS
    for part in parts:
        assert bytes(part.data) in request.body
    with contextlib.suppress(BadRequest):
        read(TRANSCRIPTIONS, body_of(TRANSCRIPTIONS, found))


def audio(data: bytes) -> None:
    """A file becomes samples within the limits, or one error. Only WAV is decoded, which needs no library."""
    found = recognise(data)
    if found is None:
        return
    assert 0 <= found.offset <= len(data)
    if found.format != WAV:
        return
    limits = AudioLimits(max_s=1.0, max_channels=2, min_rate=16_000, max_rate=16_000)
    with contextlib.suppress(BadRequest):
        samples = b"".join(decode(data, WAV, limits))
        assert len(samples) % 2 == 0
        assert 0 < len(samples) <= 32_000 + len(data)


def websocket(data: bytes) -> None:
    """Bytes of a WebSocket client become messages, pongs and at most one close, independent of cuts.

    The first byte determines the cut.
    """
    place, data = data[0] if data else 0, data[1:]
    at = place * len(data) // 256
    whole = websocket_read([data])
    messages, sent, _ = whole
    assert all(len(message.data) <= 1024 for message in messages)
    assert sent.count(b"\x88") <= 1 or b"\x89" in data or b"\x8a" in data
    assert websocket_read([data[:at], data[at:]]) == whole
    assert websocket_read([data[at : at + 1] for at in range(len(data))]) == whole


def websocket_read(pieces: list[bytes]) -> tuple[list[WebSocketMessage], bytes, bool]:
    """Returns the messages, the bytes sent in answer, and whether the connection has ended."""
    from lean_ovms.features.websocket.frames import Frames

    frames = Frames(1024)
    messages: list[WebSocketMessage] = []
    sent = b""
    for piece in pieces:
        messages += frames.feed(piece)[0]
        sent += frames.take_outgoing()
        if frames.ended:
            break
    return messages, sent, frames.ended


def masked(opcode: int, data: bytes, *, fin: bool = True, mask: bytes = b"abcd") -> bytes:
    """Returns a client's frame."""
    size = len(data)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    if size > 0xFFFF:
        length = b"\xff" + size.to_bytes(8, "big")
    hidden = bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))
    return bytes([0x80 * fin | opcode]) + length + mask + hidden


TARGETS: dict[str, Callable[[bytes], None]] = {
    "session": session, "frames": frames, "scanner": scanner, "form": form, "audio": audio,
    "websocket": websocket,
}  # fmt: skip


def seeds(target: str) -> list[bytes]:
    """Returns the first inputs of a corpus."""
    if target == "session":
        head = b"POST /a?b HTTP/1.1\r\nHost: x\r\n"
        bodies = (
            b"Content-Length: 2\r\n\r\nhi",
            b"Transfer-Encoding: chunked\r\n\r\n2;a=b\r\nhi\r\n0\r\nA: b\r\n\r\n",
            b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhiGET / HTTP/1.0\r\n\r\n",
        )
        return [b"\x40" + head + body for body in bodies]
    if target == "websocket":
        text, part, rest = masked(1, b"hello"), masked(1, b"he", fin=False), masked(0, "ä".encode())
        ping, close = masked(9, b"p"), masked(8, b"\x03\xe8bye")
        return [b"\x50" + text + ping + close, b"\x10" + part + ping + rest + text, b"\x80" + masked(2, bytes(200))]
    if target == "frames":
        told = protocol.encode([protocol.Tokens(1, 0, [65], [-0.5], None), protocol.Pong(2, {"running": 0})])
        refused = protocol.encode([protocol.Refused(3, ["BadRequest", "no", "n", None])])
        return [b"\x10" + told + refused]
    if target == "form":
        parts = [("model", "w"), ("file", ("a.wav", b"\r\n--\r\n")), ("include[]", "logprobs"), ("temperature", "1")]
        objects = [("chunking_strategy[type]", "server_vad"), ("chunking_strategy", '{"a": 1}'), ("prompt", "\xe4")]
        return [encoded(parts, "b"), encoded(objects, "b"), encoded([("file", "x"), ("n", "9" * 50)], "b")]
    if target == "audio":
        plain = [wav(bytes(64), tag=tag, bits=bits) for tag, bits in ((1, 8), (1, 16), (1, 24), (3, 32), (7, 8))]
        odd = [wav(bytes(8), size=0xFFFFFFFF), wav(bytes(9), channels=2, before=b"LIST\4\0\0\0abcd"), plain[0][:40]]
        return [*plain, *odd, b"ID3\4\0\0\0\0\0\4abcd\xff\xfb\x90\0", b"fLaC"]
    cases = []
    for place, family in enumerate(FAMILIES):
        vectors = orjson.loads((CORPUS.parents[1] / "vectors" / f"{family}.json").read_bytes())
        cases += [bytes([place, 3]) + case["text"].encode() for case in vectors["cases"][:2]]
    return [case for case in cases if len(case) < 400]

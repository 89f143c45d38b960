"""The text of PDF files."""

from __future__ import annotations

import asyncio
import io
import sys

import pypdf
import pypdf.errors
import pytest

from lean_ovms.config import Config
from lean_ovms.errors import BadRequest, Unavailable
from lean_ovms.features.pdf import reader_process
from lean_ovms.features.pdf.reader import PdfReaders
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, whole

pytestmark = pytest.mark.slow


def pdf(*pages: str, characters: str = "") -> bytes:
    """Returns a file with a line on each page, and a table of characters for codes."""
    font = f"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica {'/ToUnicode 4 0 R ' * bool(characters)}>>"
    table = f"begincmap 1 begincodespacerange <00> <FF> endcodespacerange {characters} endcmap"
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "", font, f"<< /Length {len(table)} >>\nstream\n{table}\nendstream"]
    kids = []
    for text in pages:
        stream = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET" if text else ""
        kids.append(len(objects) + 1)
        resources = "/Resources << /Font << /F1 3 0 R >> >>"
        objects.append(f"<< /Type /Page /Parent 2 0 R {resources} /Contents {len(objects) + 2} 0 R >>")
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(f'{n} 0 R' for n in kids)}] /Count {len(kids)} >>"
    out = io.BytesIO(b"%PDF-1.4\n")
    out.seek(0, io.SEEK_END)
    places = []
    for number, text in enumerate(objects, 1):
        places.append(out.tell())
        out.write(f"{number} 0 obj\n{text}\nendobj\n".encode())
    start = out.tell()
    rows = "".join(f"{place:010} 00000 n \n" for place in places)
    out.write(f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{rows}".encode())
    out.write(f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n".encode())
    return out.getvalue()


def locked(data: bytes, password: str) -> bytes:
    writer, out = pypdf.PdfWriter(io.BytesIO(data)), io.BytesIO()
    writer.encrypt(password, algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


def test_the_text_of_all_pages_is_read() -> None:
    assert reader_process.read(pdf("Hello there.", "", "Bye.")) == {"text": "Hello there.\n\nBye.", "pages": 3}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"hello", "Invalid PDF file: "),
        (pdf("x")[:60], "Invalid PDF file: "),
        (b"", "Invalid PDF file: "),
        (pdf("", ""), "the PDF file contains no text: its pages are images"),
        (locked(pdf("x"), "secret"), "the PDF file needs a password"),
    ],
    ids=["no PDF", "cut", "empty", "images", "locked"],
)
def test_what_cannot_be_read_is_said(data: bytes, error: str) -> None:
    assert str(reader_process.read(data)["error"]).startswith(error)


def test_what_a_file_encrypted_with_aes_needs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """pypdf reads RC4 by itself, and AES with a package that it does not require."""

    def refuse(*_: object) -> None:
        raise pypdf.errors.DependencyError("cryptography>=3.1 is required for AES algorithm")

    monkeypatch.setattr(pypdf, "PdfReader", refuse)
    assert reader_process.read(pdf("x")) == {"error": reader_process.NEEDS_CRYPTOGRAPHY}


def test_no_text_is_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_process, "MAX_TEXT", 20)
    found = reader_process.read(pdf("Hello there.", "Hello again."))
    assert found == {"error": "the PDF file has more than 20 characters"}


def test_halves_of_pairs_become_characters() -> None:
    """A table of characters may have a half of a UTF-16 pair, which no JSON can have."""
    table = "3 beginbfchar <41> <D83D> <42> <DE00> <43> <D83DDE00> endbfchar"
    assert reader_process.read(pdf("xABAxC", characters=table))["text"] == "x\U0001f600\ufffdx\U0001f600"


def form(data: bytes) -> Request:
    body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.pdf"\r\n\r\n' + data + b"\r\n--x--\r\n"
    return Request("POST", "/v1/pdf/text", "", {"content-type": "multipart/form-data; boundary=x"}, body)


async def test_the_endpoint_reads_a_file_in_a_process(make_app: MakeApp) -> None:
    app, _ = await make_app()
    assert await whole(await app.handle(form(pdf("Hello.")))) == {"text": "Hello.", "pages": 1}
    [pid] = app.services.states[PdfReaders].pids
    wrong = await app.handle(form(b"x"))
    assert (wrong.status, (await whole(wrong))["error"]["param"]) == (400, "file")
    assert app.services.states[PdfReaders].pids == [pid]


async def test_the_endpoint_names_the_package_that_it_lacks(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = await make_app()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    answer = await app.handle(form(b"x"))
    assert answer.status == 501
    assert "PDF files need pypdf" in (await whole(answer))["error"]["message"]


ANSWER = """import socket, sys
s = socket.socket(fileno=int(sys.argv[-1])).makefile("rwb")
(lambda s, head: s.write(len(head).to_bytes(4, "big") + head) and s.flush())(s"""


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("import sys; sys.exit(3)", "too much memory or time"),
        ("import time; time.sleep(600)", "took longer than 0.01 s"),
        (f"{ANSWER}, b'[1]')", "too much memory or time"),
        (f'{ANSWER}, b\'{{"pages": 1, "bytes": 99999999}}\')', "too much memory or time"),
    ],
)
async def test_a_process_that_ends_or_hangs_is_a_400(program: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lean_ovms.features.media_files.helper.START_S", 0.0 if "sleep" in program else 300.0)
    readers = PdfReaders(Config(fake_engine=True), [sys.executable, "-c", program], 0.01)
    with pytest.raises(BadRequest, match=error):
        await readers.read(memoryview(b"x"))
    assert readers.pids == []
    await readers.close()


async def test_more_files_than_may_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lean_ovms.features.pdf.reader.WAITING_FILES", 1)
    readers = PdfReaders(Config(fake_engine=True), [sys.executable, "-c", "import time; time.sleep(600)"])
    held = [asyncio.create_task(readers.read(memoryview(b"x"))) for _ in range(3)]
    await asyncio.sleep(0)  # two are being read, and one waits
    with pytest.raises(Unavailable, match="too many PDF files are being read; please try again later"):
        await readers.read(memoryview(b"x"))
    for task in held:
        task.cancel()
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*held, return_exceptions=True))
    assert (readers.slots.used, readers.slots.waiting) == (0, 0)
    await readers.close()


async def test_the_files_of_one_client_leave_a_process_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = iter("aab")
    monkeypatch.setattr("lean_ovms.features.media_files.helper.current_client", lambda: next(clients))
    readers = PdfReaders(Config(fake_engine=True), [sys.executable, "-c", "import time; time.sleep(600)"])
    held = [asyncio.create_task(readers.read(memoryview(b"x"))) for _ in range(3)]
    await asyncio.sleep(0)
    assert (readers.slots.at_share("b"), readers.slots.used, readers.slots.waiting) == (True, 2, 1)
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    await readers.close()

"""A split GGUF file as one file, for openvino's GGUF frontend, which opens one.

The parts' data are written one after the other behind a header with the metadata of the first part and all tensors.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ....errors import StartError
from ....repository import model_file
from .. import header as gguf

MERGE = "make one file of its parts: llama-gguf-split --merge FIRST-PART FILE, or set TMPDIR to a folder with room"
ENTRIES_BEGIN = 24
"""Bytes before the metadata: magic, version, number of tensors, number of entries."""


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yields a file with all tensors: itself, or a temporary one that is deleted at the end, where it may still be
    mapped. Raises StartError."""
    files = model_file.parts(path)
    if len(files) == 1:
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=path.suffix) as merged:
        try:
            _merge(files, merged)
        except OSError as error:
            raise StartError(
                f"{path} cannot be merged in {Path(merged.name).parent}: {error.strerror}; {MERGE}"
            ) from error
        yield Path(merged.name)


def _merge(files: list[Path], merged: IO[bytes]) -> None:
    headers = list[gguf.Header]()
    for file in files:
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            headers.append(gguf.parse(data))
            if len(headers) == 1:
                version, count = data[4:8], data[16:ENTRIES_BEGIN]
                entries = data[ENTRIES_BEGIN : headers[0].entries_end]
    merged.write(
        b"GGUF" + version + struct.pack("<Q", sum(len(header.tensors) for header in headers)) + count + entries
    )
    base, alignment = 0, headers[0].alignment
    for file, header in zip(files, headers, strict=True):
        for name, shape in header.tensors.items():
            text = name.encode()
            begin = base + header.places[name][1] - header.start
            place = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, header.kinds[name], begin)
            merged.write(struct.pack("<Q", len(text)) + text + place)
        base += -(-(file.stat().st_size - header.start) // alignment) * alignment
    for file, header in zip(files, headers, strict=True):
        merged.write(bytes(-merged.tell() % alignment))
        with open(file, "rb") as opened:
            opened.seek(header.start)
            shutil.copyfileobj(opened, merged, 1 << 20)
    merged.flush()

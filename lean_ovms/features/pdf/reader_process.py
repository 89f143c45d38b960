"""The process that reads PDF files, where a crash or a hang does no harm: python -m
lean_ovms.features.pdf.reader_process <fd>.

Like all helper processes it has limits of memory and time, and none of the server's secrets. A job on the socket pair
is a JSON line {"bytes", "seconds"} followed by that number of bytes. The answer is the object {"pages", "bytes"} and
that number of bytes of text in UTF-8, or {"error": text}.
"""

from __future__ import annotations

import io
from typing import Any

from ..media_files import helper_process
from ..media_files.helper_process import JobChannel
from .limits import MAX_TEXT

SPARE_BYTES = 512 << 20
"""The address space in bytes for the library and the objects that it makes of a file."""

NEEDS_CRYPTOGRAPHY = (
    "the PDF file is encrypted with AES, for which this server lacks a package: pip install cryptography"
)
MOST_REASON = 200
"""The most characters of the library's reason for an error, which may quote the file."""


def handle(job: dict[str, Any], stream: JobChannel) -> None:
    """Reads one job, and writes its answer."""
    data: bytes = stream.read(job["bytes"])
    helper_process.set_limits(8 * len(data) + SPARE_BYTES, job["seconds"] + 1)
    try:
        answer = read(data)
    except MemoryError:
        answer = {"error": "reading the PDF file took too much memory"}
    text = answer.pop("text", "").encode()
    helper_process.write_answer(stream, answer | {"bytes": len(text)}, [text])


def read(data: bytes) -> dict[str, Any]:
    """Returns the text of a file, with empty lines between pages, and the number of pages; or the error."""
    import pypdf
    from pypdf.errors import DependencyError, PyPdfError

    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            return {"error": "the PDF file needs a password"}
        parts: list[str] = []
        length = 0
        for page in reader.pages:
            parts.append(page.extract_text().strip())
            length += len(parts[-1]) + 2
            if length > MAX_TEXT:
                return {"error": f"the PDF file has more than {MAX_TEXT} characters"}
    except MemoryError:
        raise
    except DependencyError:
        return {"error": NEEDS_CRYPTOGRAPHY}
    except PyPdfError as error:
        return {"error": f"Invalid PDF file: {str(error)[:MOST_REASON]}"}
    except Exception as error:  # the library also raises other exceptions for damaged files
        return {"error": f"Invalid PDF file: {type(error).__name__}"}
    # Maps of characters in a file may have halves of UTF-16 pairs; a single half is no character.
    text = "\n\n".join(filter(None, parts)).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if not text:
        return {"error": "the PDF file contains no text: its pages are images"}
    return {"text": text, "pages": len(parts)}


if __name__ == "__main__":
    helper_process.run("lean_ovms.features.pdf.reader_process", handle)

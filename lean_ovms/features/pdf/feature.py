"""The manifest of PDF files."""

from __future__ import annotations

from ...manifest import BASES, ContentRow, Feature, PageRow, Route

FEATURE = Feature(
    name="pdf",
    summary="reads PDF and text files in chat messages, and extracts the text of PDF files",
    title="PDF files",
    needs=("media_files", "uploads", "chat"),
    extra="pdf",
    packages=("pypdf",),
    routes=(Route("POST", "/pdf/text", "api:handle", BASES),),
    contents=(ContentRow(kinds=("file",), words=("files",), modalities=(), reader="content:READER"),),
    page=(PageRow("read_pdf", "/v1/pdf/text"),),
)

"""The manifest of PDF files."""

from __future__ import annotations

from ...manifest import BASES, Feature, PageRow, Route

FEATURE = Feature(
    name="pdf",
    summary="reads the text of PDF files, so that the page and other clients can send it to a model",
    title="PDF files",
    needs=("media_files",),
    extra="pdf",
    packages=("pypdf",),
    routes=(Route("POST", "/pdf/text", "api:handle", BASES),),
    page=(PageRow("read_pdf", "/v1/pdf/text"),),
)

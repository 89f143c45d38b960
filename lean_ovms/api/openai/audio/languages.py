"""The language of a form. Pure."""

from __future__ import annotations

from collections.abc import Collection

from ....errors import BadRequest
from ....observability.logging import safe
from ....util.languages import find


def code_of(text: str, known: Collection[str]) -> str:
    """As languages.find. Raises BadRequest with the codes that are known."""
    code = find(text, known)
    if not code:
        listed = ", ".join(sorted(known))
        raise BadRequest(f"Unsupported language: {safe(text, 40)!r}. Must be one of [{listed}]", param="language")
    return code

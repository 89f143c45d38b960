"""The query of vLLM's endpoints without a body."""

from __future__ import annotations

from urllib.parse import parse_qs

from ...errors import BadRequest
from ...types import Request


def one_of(request: Request, name: str, allowed: tuple[str, ...], default: str) -> str:
    """The value of a query parameter, the last one if it is given several times. Raises BadRequest."""
    values = parse_qs(request.query, keep_blank_values=True).get(name, [default])
    if any(value not in allowed for value in values):
        raise BadRequest(f"{name} must be one of {', '.join(allowed)}", param=name)
    return values[-1]

"""Arguments written as one JSON object, also where the model's JSON is wrong."""

from __future__ import annotations

from .base import CombinedParser
from .scanner import Sink, Steps

_CLOSING = " \t\r\n]}"
_HELD = 64
"""Most characters at the end of broken arguments that are looked at for the brackets of what is around them."""


def json_arguments(out: CombinedParser, sink: Sink, *, in_call: bool = False) -> Steps[bool]:
    """Pass on the arguments as they come; False if they broke off.

    What follows a mistake (a quote that was not escaped, say) belongs to the arguments up to the next tag: they are
    shown as the model wrote them, and no part of them becomes text. in_call: they are a member of a call's object,
    whose bracket, and a list's, stand between them and the tag.
    """
    if (yield from out.scanner.json_value(sink)):
        return True
    pending = ""

    def more(piece: str) -> None:
        nonlocal pending
        text = pending + piece
        end = max(len(text.rstrip(_CLOSING)), len(text) - _HELD)
        if end:
            sink(text[:end])
        pending = text[end:]

    tag = yield from out.scanner.until(out.markup, more)
    out.scanner.pos -= len(tag)
    pending = pending.rstrip()
    if in_call:
        pending = pending.removesuffix("]").rstrip().removesuffix("}").rstrip()
    if pending:
        sink(pending)
    return False

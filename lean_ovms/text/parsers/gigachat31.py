"""GigaChat 3.1: <|function_call|>{"name": …, "arguments": {…}}, one call in an answer."""

from __future__ import annotations

from ...grammar.frames import CallForm, in_json
from . import gigachat3
from .detection import Detection


class Tools(gigachat3.Tools):
    """Reads what GigaChat 3 writes too."""


FORM = CallForm(one=in_json(around=(gigachat3.CALL, "")), trigger=gigachat3.CALL, alone=True)

DETECTION = Detection(rank=61, marks=((gigachat3.CALL, "<|role_sep|>"), (gigachat3.CALL, gigachat3.SEPARATOR)))

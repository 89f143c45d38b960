"""Devstral: [TOOL_CALLS]name[ARGS]{…}; without [ARGS] it is text."""

from __future__ import annotations

from ...grammar.frames import CallForm, json_after
from . import mistral
from .detection import Detection


class Tools(mistral.Tools):
    """Mistral's newest form only."""

    at_start = False
    args_needed = True


FORM = CallForm(one=json_after("[TOOL_CALLS]NAME[ARGS]"), trigger="[TOOL_CALLS]")

DETECTION = Detection(rank=80, marks=(("[TOOL_CALLS]", "[ARGS]"),))

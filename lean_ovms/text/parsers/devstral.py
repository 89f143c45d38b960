"""Devstral: [TOOL_CALLS]name[ARGS]{…}; without [ARGS] it is text."""

from __future__ import annotations

from . import mistral


class Tools(mistral.Tools):
    """Mistral's newest form only."""

    at_start = False
    args_needed = True

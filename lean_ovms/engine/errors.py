"""Errors inside the engine child, and what is kept of the native engine's messages."""

from __future__ import annotations

import logging

from ..errors import EngineFailure, RequestError

log = logging.getLogger(__name__)

NOT_UNICODE = "the text is not valid Unicode (lone surrogates)"
RESTARTING = "The engine failed and is being restarted; please try again."
"""The error of each request that is lost with its pipeline."""


class EngineLost(Exception):
    """The pipeline cannot be used again; the process has to be replaced."""


def last_line(error: Exception) -> str:
    """Returns the last line of a message of GenAI, whose first ones have source paths of its build machine."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def for_client(error: Exception, what: str) -> RequestError:
    """Returns an error of a request, or a command, as its client gets it; one that is no RequestError is logged."""
    if isinstance(error, RequestError):
        return error
    log.error("%s failed", what, exc_info=error)
    return EngineFailure("The engine could not process this request.")

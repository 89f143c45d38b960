"""Errors inside the engine process, and what clients see of the messages of openvino_genai."""

from __future__ import annotations

import logging

from ..errors import EngineFailure, RequestError

log = logging.getLogger(__name__)

NOT_UNICODE = "the text is not valid Unicode (lone surrogates)"
RESTARTING = "The engine failed and is being restarted; please try again."
"""The message for each request that is lost together with its pipeline."""


class EngineLost(Exception):
    """Raised if the pipeline cannot be used any more, so that the process has to be replaced."""


def last_line(error: Exception) -> str:
    """Returns the last line of a message of GenAI. The lines before it have source paths of its build machine."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def for_client(error: Exception, what: str) -> RequestError:
    """Returns the error for the client of a failed request or command. It logs an error of any other kind."""
    if isinstance(error, RequestError):
        return error
    log.error("%s failed", what, exc_info=error)
    return EngineFailure("The engine could not process this request.")

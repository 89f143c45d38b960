"""The method of LLM and AsyncLLM that synthesizes speech from a text."""

from __future__ import annotations

from ...api.caller import Caller
from ...types import Json
from .api import FIELDS, parse, whole_file


async def speak(llm: Caller, text: str, fields: Json) -> tuple[bytes, int]:
    """Speaks a text; returns an audio file, and its samples per second.

    Args:
        llm: Reads the fields, and finds the model.
        text: The text to speak.
        fields: The fields of a request for speech, by name.

    Raises:
        RequestError: A field is wrong, or the engine fails.
        TypeError: A field is unknown.
    """
    parsed = await llm.read(parse, FIELDS, {"input": text}, fields)
    blocks = parsed.model.speak(parsed.text, parsed.params)
    return await whole_file(parsed, llm.services, blocks), parsed.rate

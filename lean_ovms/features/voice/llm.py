"""Speaking as a method of LLM and AsyncLLM."""

from __future__ import annotations

from ...api.caller import Caller
from ...types import Json
from .api import FIELDS, parse, whole_file


async def speak(llm: Caller, text: str, fields: Json) -> tuple[bytes, int]:
    """Returns a text as an audio file, and its samples of a second.

    Args:
        llm: What reads the fields and has the model.
        text: What is spoken.
        fields: Fields of a request for speech, by their names.

    Raises:
        RequestError: For what is wrong with the fields, or with the engine.
        TypeError: For an unknown field.
    """
    parsed = await llm.read(parse, FIELDS, {"input": text}, fields)
    blocks = parsed.model.speak(parsed.text, parsed.params)
    return await whole_file(parsed, llm.services, blocks), parsed.rate

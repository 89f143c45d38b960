"""The form fields of transcriptions and translations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ....api import schemas
from ....api.fields import Field, FieldSet, read_one
from ....api.generation.common_fields import MODEL, STREAM, token_limit
from ....api.generation.sampling import SAMPLING
from ....api.schemas import field_schema
from ....errors import BadRequest, errors_of
from ....types import Json
from ...uploads.forms import FilePart, read_file

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
GRANULARITIES = ("word", "segment")
MAX_BEAMS = 8
MAX_LISTED = 100
"""Texts in languages[] or keywords[]."""
NO_SPEAKERS = "this server's models do not distinguish speakers"


def _file(value: Any) -> FilePart:
    file = read_file(value)
    if not file.data:
        raise BadRequest("file is empty", param="file")
    return file


def _format(value: str) -> str:
    if value == "diarized_json":
        raise BadRequest(f"response_format diarized_json is not supported: {NO_SPEAKERS}", param="response_format")
    if value not in FORMATS:
        raise BadRequest(f"response_format must be one of: {', '.join(FORMATS)}", param="response_format")
    return value


def _granularities(value: list[str]) -> list[str]:
    if set(value) - set(GRANULARITIES):
        raise BadRequest(
            'Invalid timestamp_granularities type. Allowed types: "segment", "word"', param="timestamp_granularities"
        )
    return value


def _include(value: list[str]) -> list[str]:
    if set(value) - {"logprobs"}:
        raise BadRequest("include may only contain logprobs", param="include")
    return value


def _no_speakers(name: str) -> Field:
    def refuse(value: list[str]) -> list[str]:
        if any(value):
            raise BadRequest(f"{name} is not supported: {NO_SPEAKERS}", param=name)
        return value

    return Field(
        name,
        "array",
        "(OpenAI) must be empty: this server's models do not distinguish speakers",
        read=refuse,
        schema={"items": {"enum": [""]}},
    )


def _texts(name: str, help: str) -> Field:  # noqa: A002 - as in Field
    def few(value: list[str]) -> list[str]:
        if len(value) > MAX_LISTED:
            raise BadRequest(f"{name} must have no more than {MAX_LISTED} strings", param=name)
        return [text for text in value if text]

    return Field(name, "array", help, read=few, schema={"items": schemas.STRING, "maxItems": MAX_LISTED})


TURNS = (
    Field("threshold", "number", "probability above which audio counts as speech", low=0, high=1, default=0.5),
    Field("prefix_padding_ms", "int", "milliseconds of audio kept before the speech", low=0, high=10000, default=300),
    Field("silence_duration_ms", "int", "milliseconds of silence that end the speech", low=0, high=10000, default=500),
)


_CHUNKING = schemas.any_of(
    schemas.const("auto"),
    schemas.object_of(
        {"type": schemas.const("server_vad")}, **{one.name: field_schema(one, nullable=False) for one in TURNS}
    )
    | {"additionalProperties": False},
)


def _chunking(value: Any) -> Json | None:
    """Reads chunking_strategy: returns the members of server_vad, or None for "auto"."""
    if value == "auto":
        return None
    if not isinstance(value, dict) or value.get("type") != "server_vad":
        raise BadRequest('chunking_strategy must be auto or {"type": "server_vad"}', param="chunking_strategy")
    if unknown := sorted(set(value) - {"type", *(one.name for one in TURNS)}):
        raise BadRequest(f"chunking_strategy has an unknown key {unknown[0][:40]!r}", param="chunking_strategy")
    with errors_of("chunking_strategy", member=True):
        return {one.name: read_one(one, value.get(one.name)) for one in TURNS}


def _shared(name: str, **changes: Any) -> Field:
    """Returns the field of this name that generation requests also have, with changes."""
    return replace(SAMPLING.named(name), **{"builtin": None, **changes})


COMMON = (
    Field("file", "any", "audio file", required=True, read=_file, schema={"type": "string", "format": "binary"}),
    replace(MODEL, help="name of a served model; optional if only one model transcribes speech"),
    Field("prompt", "string",
        "text that the model treats as spoken just before the audio; only the last tokens of a long text are used",
        default=""),
    Field("hotwords", "string", "(vLLM) words that are likely to be spoken", default=""),
    Field("response_format", "string", "json, text, srt, verbose_json or vtt", default="json", read=_format,
        schema={"enum": list(FORMATS)}),
    _shared("temperature", default=0.0,
        help="sampling temperature; 0 takes the likeliest tokens, and samples again at higher ones if the text is "
            "improbable or repeats itself"),
    STREAM,
    Field("stream_include_usage", "bool", "(vLLM) send the token counts in an additional last chunk", default=False),
    Field("stream_continuous_usage_stats", "bool", "(vLLM) send the token counts with every chunk", default=False),
    Field("use_beam_search", "bool", "(vLLM) use beam search of width n; not allowed in streams", default=False),
    _shared("n", low=1, high=MAX_BEAMS, default=1, help="(vLLM) width of the beam search"),
    _shared("length_penalty", default=1.0),
    _shared("top_p", default=1.0),
    _shared("top_k", default=0),
    _shared("min_p", default=0.0, help="(vLLM) accepted without effect"),
    _shared("seed"),
    _shared("repetition_penalty", default=1.0),
    _shared("presence_penalty", default=0.0),
    _shared("frequency_penalty", default=0.0),
    replace(token_limit("max_completion_tokens", "(vLLM) maximum number of generated tokens"),
        low=1, outside=""),
)  # fmt: skip
"""Fields of both endpoints. Arrays may be sent as name[], too."""

LANGUAGE = Field("language", "string", "code or name of the spoken language; detected if absent")
TO_LANGUAGE = Field("to_language", "string", "(vLLM) language of the text; only en, for translations")

TRANSCRIPTIONS = FieldSet((
    *COMMON,
    LANGUAGE,
    TO_LANGUAGE,
    Field("timestamp_granularities", "array", "timestamps in the answer: segment, word", read=_granularities,
        schema={"items": {"enum": list(GRANULARITIES)}}),
    Field("include", "array", "logprobs returns the log probabilities of the tokens", read=_include,
        schema={"items": {"enum": ["logprobs"]}}),
    Field("chunking_strategy", "any",
        "auto, or an object with type server_vad: cut the audio at silences", read=_chunking,
        fields=TURNS, schema=_CHUNKING),
    _texts("languages", "(OpenAI) accepted without effect"),
    _texts("keywords", "(OpenAI) other name of hotwords"),
    _no_speakers("known_speaker_names"),
    _no_speakers("known_speaker_references"),
))  # fmt: skip

TRANSLATIONS = FieldSet((*COMMON, LANGUAGE, TO_LANGUAGE))

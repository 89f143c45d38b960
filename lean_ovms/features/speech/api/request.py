"""Reads the fields of a form: the file, the model, the parameters of transcription, and the format of the answer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ....api.fields import FieldSet, Values, read
from ....api.generation import common_fields
from ....api.response import warning_headers
from ....api.services import Services
from ....errors import BadRequest
from ....media.file_slice import FileSlice
from ....observability.logging import safe
from ....observability.records import current_record
from ....types import Json
from ..languages import find
from ..model import SpeechModel
from ..params import TRANSLATE, SpeechInfo, TranscribeParams, TurnDetection
from .fields import TRANSCRIPTIONS

WITH_SEGMENTS = ("srt", "vtt")
OF_SAMPLING = ("temperature", "top_p", "top_k", "seed")
"""The fields that choose random tokens, which a beam search does not."""
OF_BEAMS = ("n", "length_penalty")
"""The fields of a beam search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioRequest:
    """A parsed request for a transcription or a translation."""

    values: Values
    """The values of the form's fields."""
    model: SpeechModel
    """The model that transcribes."""
    params: TranscribeParams
    """The parameters of the transcription."""
    segments: bool
    """Whether the answer lists the segments, instead of only using them for subtitles."""
    include_usage: bool
    """Whether a stream ends with a usage object."""
    headers: list[tuple[str, str]]
    """The Warning headers of the response."""

    @property
    def logprobs(self) -> bool:
        """Whether the client asks for log probabilities, even if the model cannot give them."""
        return bool(self.values.get("include"))


def parse(body: Json, services: Services, fields: FieldSet, task: str) -> tuple[AudioRequest, memoryview | FileSlice]:
    """Reads a form, and returns the request and the audio file. Raises RequestError."""
    values = read(fields, body)
    name = values["model"] or services.registry.default_of(SpeechModel)
    if not name:
        raise BadRequest("the model field is missing, but more than one model is served", param="model")
    model = services.registry.get(name, SpeechModel)
    if record := current_record.get():
        record.stream = values["stream"]
    if values["file"] is None:
        raise BadRequest("file is missing", param="file")
    _check_stream(values)
    info = model.speech
    params = _params(values, info, task)
    verbose = values["response_format"] == "verbose_json"
    unread = {name: value for name, value in body.items() if name not in common_fields.UNSUPPORTED.places}
    parsed = AudioRequest(
        values=values,
        model=model,
        params=params,
        segments=params.segments and (verbose or "segment" in _details(values, "timestamp_granularities")),
        include_usage=values["stream_include_usage"] or services.config.enable_force_include_usage,
        headers=warning_headers([*_ignored(values, fields, body, task), *common_fields.warnings(fields, unread)]),
    )
    return parsed, values["file"].data


def _check_stream(values: Values) -> None:
    if values["stream"]:
        if values["response_format"] in WITH_SEGMENTS:
            raise BadRequest(
                f"{values['response_format']} format doesn't support streaming case", param="response_format"
            )
        if values["use_beam_search"]:
            raise BadRequest("Streaming is not currently supported with beam search", param="stream")
        return
    for name in ("stream_include_usage", "stream_continuous_usage_stats"):
        if values[name]:
            raise BadRequest("Stream options can only be defined when `stream=True`.", param=name)


def _details(values: Values, name: str) -> list[str]:
    """Returns the texts in a field that asks for more members of the answer; none if the answer is only a text."""
    only_text = values["response_format"] not in ("json", "verbose_json") and not values["stream"]
    return [] if only_text else values.get(name) or []


def _params(values: Values, info: SpeechInfo, task: str) -> TranscribeParams:
    """Returns the parameters of the transcription for the engine. Raises BadRequest."""
    if task == TRANSLATE:
        _check_translation(values, info)
    form, names = values["response_format"], _details(values, "timestamp_granularities")
    words = "word" in names
    if words and "words" not in info.capabilities:
        raise BadRequest("Word timestamps not supported for this model", param="timestamp_granularities")
    beams = values["n"] if values["use_beam_search"] else 1
    if beams > 1 and "beams" not in info.capabilities:
        raise BadRequest("beam search is not supported by this model", param="use_beam_search")
    turns = values.get("chunking_strategy")
    keywords = " ".join(values.get("keywords") or ())
    return TranscribeParams(
        task=task,
        language=code_of(values["language"], info.languages) if values["language"] else "",
        prompt=info.end_of(values["prompt"]),
        hotwords=info.end_of(" ".join(filter(None, (values["hotwords"], keywords)))),
        segments=form in WITH_SEGMENTS or "segment" in names or (form == "verbose_json" and not words),
        words=words,
        temperature=float(values["temperature"]),
        fallback=not values["temperature"] and not values["stream"],  # text is sent when its window is done
        top_p=float(values["top_p"]),
        top_k=max(0, values["top_k"]),
        seed=None if values["seed"] == -1 else values["seed"],
        repetition_penalty=float(values["repetition_penalty"]),
        presence_penalty=float(values["presence_penalty"]),
        frequency_penalty=float(values["frequency_penalty"]),
        beams=beams,
        length_penalty=float(values["length_penalty"]),
        max_tokens=values["max_completion_tokens"] or 0,
        logprobs=bool(_details(values, "include")) and "logprobs" in info.capabilities,
        turns=TurnDetection(**turns) if turns else None,
    )


def _check_translation(values: Values, info: SpeechInfo) -> None:
    if not info.translates:
        raise BadRequest("this model does not support translation", param="model")
    if values["to_language"]:
        try:
            code_of(values["to_language"], ("en",))
        except BadRequest:
            raise BadRequest(
                "to_language must be en, the only language into which models translate", param="to_language"
            ) from None


def _ignored(values: Values, fields: FieldSet, body: Json, task: str) -> Iterator[str]:
    """Yields a warning for each field that has no effect."""
    if values["min_p"]:
        yield "min_p is not supported and was ignored"
    if values.get("languages"):
        yield "languages is not supported and was ignored; use language"
    yield from _overruled(values, fields)
    if values["to_language"] and task != TRANSLATE:
        yield "to_language has no effect: a transcription is in the spoken language"
    given = {name.removesuffix("[]") for name, value in body.items() if value not in (None, "", [])}
    for name in sorted(given & (TRANSCRIPTIONS.names - fields.names)):
        yield f"{name} is not supported for translations and was ignored"


def _overruled(values: Values, fields: FieldSet) -> Iterator[str]:
    """Yields a warning for each field that has no effect because of another field's value."""
    beams = values["use_beam_search"]
    for name in OF_SAMPLING if beams and values["n"] > 1 else () if beams else OF_BEAMS:
        if values[name] != fields.defaults[name]:
            yield f"{name} has no effect with{'' if beams else 'out'} use_beam_search"
    for name in ("timestamp_granularities", "include"):
        if values.get(name) and not _details(values, name):
            yield f"{name} has no effect with response_format {values['response_format']}"


def code_of(text: str, known: Collection[str]) -> str:
    """Returns the code of a language that a client names by code or name. Raises BadRequest if it is unknown."""
    code = find(text, known)
    if not code:
        listed = ", ".join(sorted(known))
        raise BadRequest(f"Unsupported language: {safe(text, 40)!r}. Must be one of [{listed}]", param="language")
    return code

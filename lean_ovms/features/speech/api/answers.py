"""Writes a transcript as a response, in each response format.

The formats are those of https://platform.openai.com/docs/api-reference/audio with some additional members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....api.response import json
from ....types import Json, Response
from ..languages import name_of
from ..params import Segment, Word
from .request import AudioRequest
from .transcript import Transcript, entries

FRAME_S = 0.01
PLAIN, VTT = "text/plain; charset=utf-8", "text/vtt; charset=utf-8"


def answer(parsed: AudioRequest, found: Transcript) -> Response:
    """Returns the response of a request without streaming, in the format that it asks for."""
    match parsed.values["response_format"]:
        case "text":
            return _text(found.text, PLAIN, parsed)
        case "srt":
            return _text(srt(found.segments), PLAIN, parsed)
        case "vtt":
            return _text(vtt(found.segments), VTT, parsed)
        case "verbose_json":
            body = verbose(parsed, found)
        case _:
            body = brief(parsed, found)
    return json(body, parsed.headers)


def _text(text: str, media: str, parsed: AudioRequest) -> Response:
    return Response(200, [("Content-Type", media), *parsed.headers], text.encode("utf-8", "replace"))


def brief(parsed: AudioRequest, found: Transcript) -> Json:
    """Returns the body in the format json."""
    return {
        "text": found.text,
        **({"logprobs": entries(found.logprobs)} if parsed.logprobs else {}),
        **times(parsed, found),
        "language": found.language,
        "usage": seconds_usage(found),
    }


def verbose(parsed: AudioRequest, found: Transcript) -> Json:
    """Returns the body in the format verbose_json."""
    return {
        "task": parsed.params.task,
        **known(found),
        "text": found.text,
        **times(parsed, found),
        **({"logprobs": entries(found.logprobs)} if parsed.logprobs else {}),
        "usage": seconds_usage(found),
        "language_name": name_of(found.language),
    }


def known(found: Transcript) -> Json:
    """Returns the members `language` and `duration`."""
    return {"language": found.language, "duration": round(found.seconds, 3)}


def times(parsed: AudioRequest, found: Transcript) -> Json:
    """Returns the members `segments` and `words`, each if it is requested."""
    shown: Json = {}
    if parsed.segments:
        numbered = enumerate(zip(found.segments, found.seeks, strict=True))
        shown["segments"] = [_segment(number, one, seek) for number, (one, seek) in numbered]
    if parsed.params.words:
        shown["words"] = [_word(one) for one in found.words]
    return shown


def _segment(number: int, one: Segment, seek: float) -> Json:
    return {
        "id": number,
        "seek": round(seek / FRAME_S),
        "start": round(one.start, 3),
        "end": round(one.end, 3),
        "text": one.text,
        "tokens": one.tokens,
        "temperature": one.temperature,
        "avg_logprob": one.avg_logprob,
        "compression_ratio": one.compression_ratio,
        "no_speech_prob": one.no_speech_prob,
    }


def _word(one: Word) -> Json:
    return {"word": one.word, "start": round(one.start, 3), "end": round(one.end, 3)}


def seconds_usage(found: Transcript) -> Json:
    """Returns the usage object by the length of the audio, in whole seconds."""
    return {"type": "duration", "seconds": math.ceil(round(found.seconds, 3))}


def token_usage(found: Transcript) -> Json:
    """Returns the usage object by tokens, with which OpenAI's streams end."""
    counts = found.usage
    return {
        "type": "tokens",
        "input_tokens": counts.prompt_tokens,
        "output_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        "input_token_details": {"text_tokens": found.prompt_tokens, "audio_tokens": found.audio_tokens},
    }


def srt(segments: Sequence[Segment]) -> str:
    """Returns the segments as the subtitle format SubRip: numbered cues, or "" without segments."""
    cues = [f"{number}\n{_times(one, ',')}\n{_line(one)}\n" for number, one in enumerate(segments, 1)]
    return "\n".join(cues)


def vtt(segments: Sequence[Segment]) -> str:
    """Returns the segments as WebVTT (https://www.w3.org/TR/webvtt1/): the header and the cues."""
    cues = [f"{_times(one, '.')}\n{_escaped(_line(one))}\n" for one in segments]
    return "\n".join(["WEBVTT\n", *cues])


def _line(segment: Segment) -> str:
    """Returns the text of a segment on one line, in which an arrow cannot be mistaken for the times of a cue."""
    return " ".join(segment.text.split()).replace("-->", "\N{RIGHTWARDS ARROW}")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _times(segment: Segment, mark: str) -> str:
    return f"{_time(segment.start, mark)} --> {_time(segment.end, mark)}"


def _time(seconds: float, mark: str) -> str:
    """Formats a time as hh:mm:ss, the mark, and milliseconds."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}{mark}{milliseconds:03d}"

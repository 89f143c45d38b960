"""The fields of a chat or a response whose answer is spoken. What speaks is imported by the requests that have them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import BadRequest
from ...models.generation import DeltaStream
from ...types import Json
from ..fields import Field, Values
from ..generation.request import GenerationBody
from ..generation.unsupported import UNSUPPORTED
from ..schemas import VOICE
from ..services import Services

if TYPE_CHECKING:
    from .audio_output import AudioOutput

AUDIO_FORMATS = ("wav", "mp3", "flac", "opus", "pcm16")


def _read_audio(value: Json) -> Json:
    if value.get("format") not in (None, *AUDIO_FORMATS):
        raise BadRequest(f"audio.format must be one of {', '.join(AUDIO_FORMATS)}", param="audio.format")
    return value


FIELDS = (
    replace(UNSUPPORTED.named("modalities"),
        help='["text", "audio"]: the model, or that of --audio_output_model, speaks the answer',
        schema={"items": {"enum": ["text", "audio"]}}),
    Field("audio", "object", "voice and format of a spoken answer: wav, mp3, flac, opus or pcm16; in a stream pcm16",
        read=_read_audio, schema={"properties": {"format": {"enum": list(AUDIO_FORMATS)}, "voice": VOICE}}),
)  # fmt: skip


def read_audio(
    values: Values, generation: GenerationBody, services: Services
) -> tuple[GenerationBody, AudioOutput | None]:
    """Returns the generation, by a model that speaks itself with a voice, and how the answer is spoken; None if it is
    text alone. Raises RequestError."""
    if not values["modalities"] and not values["audio"]:
        return generation, None
    from .audio_output import read_audio_output

    output = read_audio_output(values, generation, services)
    if output is not None and output.model is None:
        generation = replace(generation, sampling=replace(generation.sampling, speaker=output.params.voice))
    return generation, output


def spoken(deltas: DeltaStream, output: AudioOutput | None) -> DeltaStream:
    """Returns the deltas of an answer with those of its audio, if another model speaks it."""
    if output is None or output.model is None:
        return deltas
    from .audio_output import SpokenStream

    return SpokenStream(deltas, output, output.model)

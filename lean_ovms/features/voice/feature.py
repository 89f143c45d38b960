"""The manifest of text-to-speech models."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ...config.options import Options, option
from ...errors import StartError
from ...manifest import BASES, Feature, PanelRow, Route, TaskRow
from ..media_files.feature import SpokenTextOptions

TASK = "text2speech"
"""The name of the task of text-to-speech models, as in OVMS."""
_model = partial(option, group="model", tasks=(TASK,))


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class VoiceOptions(Options):
    """The options of a text-to-speech model: its voices, and how fast they may speak."""

    in_engine = True
    voices: str = _model(
        "",
        "JSON object that maps names of further voices of a text-to-speech model to files; voices in its folder "
        "voices need no entry",
        json_object=True,
    )
    speed_min: float = _model(0.25, "lowest speed that a speech request may set", low=0.05, high=20)
    speed_max: float = _model(4.0, "highest speed that a speech request may set", low=0.05, high=20)

    def check(self, config: Any) -> None:
        """Checks that the lowest speed is not above the highest. Raises StartError."""
        if self.speed_min > self.speed_max:
            raise StartError("--speed_min must not be above --speed_max")


if TYPE_CHECKING:
    from ...util.files import ModelFiles

SPEECHT5 = ("openvino_encoder_model.xml", "openvino_decoder_model.xml", "openvino_postnet.xml", "openvino_vocoder.xml")
"""The networks of SpeechT5. The last one identifies such a model."""

KOKORO = "kokoro"
"""The model type of Kokoro in config.json."""


def _speaks(files: ModelFiles) -> bool:
    # Its publisher's files have no model_type; optimum-intel writes one.
    kokoro = "n_mels" in files.config and not files.architectures and files.config.get("model_type", KOKORO) == KOKORO
    return files.is_of("ForTextToSpeech") or "ParlerTTSForConditionalGeneration" in files.architectures or kokoro


def _missing(names: Collection[str]) -> list[str]:
    from ...repository.model_config import TEXT_MODEL, TOKENIZERS  # late, since every start imports manifests

    if SPEECHT5[-1] in names:
        return [name for name in (*SPEECHT5, TOKENIZERS[0]) if name not in names]
    # Kokoro has one network, a file per voice, and no tokenizer.
    return [] if TEXT_MODEL in names else [f"{TEXT_MODEL} or {SPEECHT5[-1]}"]


FEATURE = Feature(
    name="voice",
    summary="speaks text with text-to-speech models",
    title="OpenAI: text to speech",
    reference="https://platform.openai.com/docs/api-reference/audio/createSpeech",
    needs=("media_files",),
    options=VoiceOptions,
    libraries=(SpokenTextOptions,),
    flags="flags.txt",
    routes=(
        Route("POST", "/audio/speech", "api:handle", BASES, model="VoiceModel"),
        Route("GET", "/audio/voices", "api:handle_voices", BASES, auth="models"),
    ),
    panel=PanelRow(view="speech", place=2, title="Speech", icon="wave", tasks=((TASK, "Text to speech"),)),
    methods={"speak": "llm:speak"},
    tasks=(
        TaskRow(
            name=TASK,
            recognizes=_speaks,
            model="model:VoiceModel",
            loader="child.task:load",
            records="records",
            networks=(SPEECHT5[-1], *SPEECHT5[:-1]),
            shown_by=rf"{re.escape(SPEECHT5[-1])}|voices/[^/]+\.bin",
            missing=_missing,
            exported_as="text-to-audio",
            bodies=(((), "/v1/audio/speech"),),
        ),
    ),
)

"""A Synthesizer on openvino_genai's Text2SpeechPipeline: SpeechT5 and Kokoro.

Measured with GenAI 2026.4: the GIL is released while it speaks; a pipeline has one infer request, so two threads on one
get "Infer Request is busy"; the tensor that it returns is overwritten by the next call, so it is copied; text beyond
the model's positions gives an obscure RuntimeError of the network; SpeechT5 ignores speed and language; Kokoro needs a
voice.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

from ..feature import VoiceOptions

# isort: split
import numpy as np
import openvino as ov
import openvino_genai as genai
from numpy.typing import NDArray

from ....config import EngineConfig
from ....config.options import read_object
from ....engine.loading.pipeline_choice import as_start_error
from ....engine.loading.settings import HINT, base_properties, on_device
from ....types.audio import SpeakParams, VoiceInfo
from ....types.engine import ModelInfo
from ....util import files
from ....util.resources import cores
from . import voices

VOCODER = "openvino_vocoder.xml"
"""The network that SpeechT5 has, and Kokoro lacks."""
SPEECHT5_RATE, KOKORO_RATE = 16_000, 24_000
KOKORO_PRECISION = "f32"
"""The precision in which Kokoro is computed. Its tones are sines of angles that grow by thousands per second. Of angles
around 4,000, bf16 can represent only every sixteenth, so the tones would change. A sentence takes half as long again as
in bf16 (2026-11)."""
POSITIONS = 600
"""The number of positions of SpeechT5, including special tokens, if config.json has none."""
MOST_CHARACTERS = 240
"""The most characters of a text, which makes a step take a few seconds; a cancelled request stops after it."""
BUILT_IN = "default"
"""The name of SpeechT5's built-in voice, if there are other voices."""
LANGUAGES = ["en-us", "en-gb", "es", "fr-fr", "hi", "it", "pt-br"]
"""The languages of Kokoro. Those after the first two need espeak-ng on the machine."""
WARM_UP = "Ready."


class GenAiSynthesizer:
    """A Synthesizer with a pipeline for each text that is spoken at once (--num_streams), each with the weights."""

    def __init__(self, config: EngineConfig) -> None:
        """Loads the model once for each stream. Raises StartError."""
        config, _ = on_device(config)
        self.slots = config.streams
        self._speecht5 = (config.model_dir / VOCODER).is_file()
        with as_start_error(config):
            properties = base_properties(config)
            if config.target_device == "CPU" and config.num_streams > 1:
                properties["INFERENCE_NUM_THREADS"] = max(1, cores() // config.num_streams)
            if config.target_device == "CPU" and not self._speecht5:
                properties[HINT] = KOKORO_PRECISION
            properties |= read_object("plugin_config", config.plugin_config)
            self._pipelines = [
                genai.Text2SpeechPipeline(config.model_dir, config.target_device, **properties)
                for _ in range(self.slots)
            ]
            shape = [int(size) for size in self._pipelines[0].get_speaker_embedding_shape()]
        if not self._speecht5:
            voices.require_lexicon(config.model_dir)
        self._voices = {name: ov.Tensor(voice) for name, voice in voices.read(config, shape).items()}
        self._threads = ThreadPoolExecutor(self.slots, "voice") if self.slots > 1 else None
        self.info = self._describe(config)
        if self._speecht5 or self._voices:
            with as_start_error(config):
                for pipeline in self._pipelines:
                    self._speak(pipeline, WARM_UP, SpeakParams())

    def _describe(self, config: EngineConfig) -> ModelInfo:
        names, options = list(self._voices), config.of(VoiceOptions)
        if self._speecht5 and names and BUILT_IN not in names:
            names.insert(0, BUILT_IN)
        voice_info = VoiceInfo(
            sample_rate=SPEECHT5_RATE if self._speecht5 else KOKORO_RATE,
            voices=names,
            languages=[] if self._speecht5 else LANGUAGES,
            speed=[1.0, 1.0] if self._speecht5 else [options.speed_min, options.speed_max],
        )
        return ModelInfo(
            vocab_size=0,
            context_length=self._most_characters(config),
            versions={"openvino": str(ov.get_version()), "openvino_genai": version("openvino_genai")},
            voices=voice_info,
        )

    def _most_characters(self, config: EngineConfig) -> int:
        """Returns half of the positions, since a character may take several tokens if the vocabulary lacks it."""
        if not self._speecht5:
            return MOST_CHARACTERS
        positions = files.read_object(config.model_dir / "config.json").get("max_text_positions")
        return min(MOST_CHARACTERS, (positions if isinstance(positions, int) and positions > 8 else POSITIONS) // 2)

    def speak(self, jobs: Sequence[tuple[str, SpeakParams]]) -> list[NDArray[np.float32] | Exception]:
        if self._threads is None or len(jobs) == 1:
            return [self._attempt(pipeline, *job) for pipeline, job in zip(self._pipelines, jobs, strict=False)]
        return list(self._threads.map(lambda pair: self._attempt(pair[0], *pair[1]), zip(self._pipelines, jobs)))  # noqa: B905

    def _attempt(self, pipeline: Any, text: str, params: SpeakParams) -> NDArray[np.float32] | Exception:
        try:
            return self._speak(pipeline, text, params)
        except Exception as error:  # C++'s standard exceptions arrive as several kinds
            return error

    def _speak(self, pipeline: Any, text: str, params: SpeakParams) -> NDArray[np.float32]:
        voice = self._voices.get(params.voice)
        if voice is None and not self._speecht5:
            voice = next(iter(self._voices.values()), None)
        more: dict[str, Any] = {}
        if not self._speecht5:
            more = {"speed": params.speed, "language": params.language or LANGUAGES[0]}
        found = pipeline.generate(text, voice, **more)
        if not found.speeches:
            return np.zeros(0, np.float32)
        return np.array(found.speeches[0].data, np.float32).reshape(-1)

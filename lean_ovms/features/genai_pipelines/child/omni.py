"""openvino_genai's OmniPipeline as a Pipeline: it reads text, images and audio, one request at a time.

openvino_genai would put audio before the prompt. Here it is at the place of its tag, as the model was trained: the tag
becomes the model's own tokens, which openvino_genai fills in order. The encoder gets at most one window of audio at
once, since it encodes everything after the first window twice (2026.4.1).
"""

from __future__ import annotations

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import re
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino_genai as genai

from ....config import EngineConfig
from ....engine.generation.image_prompts import TAG, ImagePrompt
from ....engine.loading.settings import PipelineSettings
from ....errors import StartError
from ....manifest import GENAI_ADAPTERS
from ....types.audio import SAMPLE_BYTES, SAMPLE_RATE, VoiceInfo
from ....util import files
from .image_tokens import GenAiImageTokens
from .scheduler_config import scheduler
from .stateful import StatefulHandle, StatefulPipeline, Streamer
from .vlm_continuous import IDENTITY_TEMPLATE, tensor
from .vlm_stateful import VlmStateful

AUDIO_TOKENS = "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>"
FRAME = SAMPLE_RATE // 100
"""Samples of a frame of the encoder's input."""
DEFAULT_WINDOW = 400
"""Frames of its window where config.json has no n_window_infer."""
SHORTEST = 400
"""Samples below which there is nothing to encode."""
VOICE_RATE = 24_000
CHUNK_FRAMES = 24
"""Frames of a piece of speech, about 2 s: where a piece ends, the network loses 23 ms."""
FRAMES_PER_TOKEN = 25
"""Most frames of speech (80 ms each) for a token of the text: a talker that does not end is stopped."""
NO_AUDIO = np.zeros(0, np.float32)
"""Passed if a request has no audio: openvino_genai (2026.4.1) would otherwise use the previous request's audio."""


class _LastTokenStreamer(Streamer):
    """A streamer that holds back the last tokens until the whole answer is spoken."""

    def __init__(self, pipeline: StatefulPipeline, handle: StatefulHandle) -> None:
        super().__init__(pipeline, handle)
        self.last: list[int] = []

    def write(self, tokens: list[int]) -> Any:
        before, self.last = self.last, list(tokens)
        return super().write(before)


class OmniPipeline(VlmStateful):
    """A Pipeline with a counter of the tokens of images and audio."""

    def __init__(self, config: EngineConfig, settings: PipelineSettings) -> None:
        thinker = files.read_object(config.model_dir / "config.json").get("thinker_config") or {}
        self._window: int = FRAME * thinker.get("audio_config", {}).get("n_window_infer", DEFAULT_WINDOW)
        super().__init__(config, settings)
        voices = VoiceInfo(sample_rate=VOICE_RATE, voices=self._omni.get_talker().list_speakers())
        self.info = replace(self.info, audio=True, voices=voices, capabilities=[*self.info.capabilities, "speech"])
        assert isinstance(self.image_token_counter, GenAiImageTokens)
        self.image_token_counter.audio_tokens = self._audio_tokens

    def _open(self, config: EngineConfig, settings: PipelineSettings) -> Any:
        if config.wants(GENAI_ADAPTERS):
            raise StartError("LoRA adapters are not supported for models that read audio")
        path, device = str(config.model_dir), settings.device
        whole = scheduler(config, replace(settings, step_tokens=settings.context))
        pipe = genai.VLMPipeline(path, device, ATTENTION_BACKEND="PA", scheduler_config=whole, **settings.properties)
        self._omni = genai.OmniPipeline(pipe, genai.Talker(path, device, **settings.properties))
        tokenizer = pipe.get_tokenizer()
        self._template = tokenizer.get_original_chat_template()
        tokenizer.set_chat_template(IDENTITY_TEMPLATE)
        return pipe

    def _compute(self, handle: StatefulHandle) -> list[int]:
        sampling = handle.request.sampling
        if sampling.speaker is None:
            return super()._compute(handle)
        assert handle.request.image_prompt is not None
        streamer, speech = _LastTokenStreamer(self, handle), genai.OmniTalkerSpeechConfig()
        speech.speaker, speech.rng_seed, speech.audio_chunk_frames = sampling.speaker, handle.request.seed, CHUNK_FRAMES
        speech.max_new_tokens = FRAMES_PER_TOKEN * (handle.request.max_tokens + 1)
        result = self._generate_with_images(
            handle.request.image_prompt,
            handle.config,
            streamer,
            talker_speech_config=speech,
            speech_streamer=lambda chunk: self.receive(handle, [], _samples(chunk)),
        )
        handle.prompt_tokens = int(result.perf_metrics.get_num_input_tokens())
        self.receive(handle, streamer.last)
        return []

    def _generate_with_images(
        self, image_prompt: ImagePrompt, config: Any, streamer: Streamer | None = None, **speech: Any
    ) -> Any:
        config.apply_chat_template = not image_prompt.add_special_tokens
        parts: list[npt.NDArray[np.float32]] = []

        def placed(tag: re.Match[str]) -> str:
            if not tag[2]:
                return tag[0]
            samples, (start, pad, end) = image_prompt.audio[int(tag[2])], AUDIO_TOKENS
            parts.extend(self._parts(samples))
            return start + pad * (self._audio_tokens(samples) - 2) + end

        text = TAG.sub(placed, image_prompt.text)
        if not speech:
            silent = genai.OmniTalkerSpeechConfig()
            silent.return_audio = False
            speech["talker_speech_config"] = silent
        return self._omni.generate(
            text,
            images=[tensor(image) for image in image_prompt.images],
            audios=[ov.Tensor(part) for part in parts or [NO_AUDIO]],
            text_config=config,
            **speech,
            **({} if streamer is None else {"streamer": streamer}),
        )

    def _audio_tokens(self, samples: bytes) -> int:
        """Returns the number of tokens of audio, including those around it."""
        whole, rest = divmod(len(samples) // SAMPLE_BYTES, self._window)
        return 2 + whole * _tokens(self._window) + (_tokens(max(rest, SHORTEST)) if rest else 0)

    def _parts(self, samples: bytes) -> list[npt.NDArray[np.float32]]:
        """Splits audio into parts for the encoder, none of which is longer than a window."""
        signal = np.frombuffer(samples, "<i2").astype(np.float32) / 32768
        parts = [signal[start : start + self._window] for start in range(0, len(signal), self._window)]
        return [np.pad(part, (0, max(0, SHORTEST - len(part)))) for part in parts]


def _samples(chunk: Any) -> bytes:
    """Converts new audio to samples of 16 bits, little-endian, mono."""
    signal = np.clip(np.asarray(chunk.data).reshape(-1), -1, 1)
    return bytes((signal * 32767).round().astype("<i2").tobytes())


def _tokens(samples: int) -> int:
    """Returns the number of tokens of a part of audio: three convolutions halve its frames, rounded up."""
    length = samples // FRAME
    for _ in range(3):
        length = (length + 1) // 2
    return length

"""The differences between the models of openvino_genai's ASRPipeline: their prompts, languages, options and results.

https://github.com/openvinotoolkit/openvino.genai/tree/master/src/cpp/src/automatic_speech_recognition
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ....errors import StartError
from ....types.audio import SAMPLE_RATE
from ....types.engine import Vocabulary
from ....util import files
from .. import languages
from ..params import TRANSLATE, WINDOW_S, Segment, TextDelta, TranscribeParams, WindowDone, Word
from . import whisper_files
from .recognizer import Job

MIN_TIMED = 8
"""Tokens of a window with timestamps: with fewer Whisper's pipeline may not return."""
QWEN_TOKENS = 1024
"""The most tokens of a window of 30 s; the pipeline itself has no limit."""
QWEN_PROMPT = 4096
"""The most tokens of the text that comes with the audio: more would only take time."""
MAX_SEED = (1 << 63) - 1
QWEN_ENDS = (b"<|im_end|>", b"<|endoftext|>")
QWEN_LANGUAGES = (
    "zh", "en", "yue", "ar", "de", "fr", "es", "pt", "id", "it", "ko", "ru", "th", "vi", "ja", "tr", "hi", "ms",
    "nl", "sv", "da", "fi", "pl", "cs", "fil", "fa", "el", "ro", "hu", "mk",
)  # fmt: skip
"""Languages of Qwen3-ASR, if config.json has no support_languages."""
FUN_LANGUAGES = ("zh", "en", "ja")
"""Languages of Fun-ASR-Nano; its files do not say."""


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts that are given to the model with the audio."""

    prompt: str = ""
    """The text that precedes the window's text."""
    hotwords: str = ""
    """Words that are likely in the audio."""
    tokens: int = 0
    """The number of tokens of prompt and hotwords together."""


class Kind:
    """The kind of Qwen3-ASR, which takes one text with the audio, and has neither timestamps nor translation."""

    translates = False
    max_tokens = QWEN_TOKENS
    max_prompt_tokens = QWEN_PROMPT
    window = int(WINDOW_S * SAMPLE_RATE)
    positions = 1 << 16
    """The positions of the decoder."""

    def __init__(self, known: Sequence[str], ends: Sequence[int] = ()) -> None:
        """Keeps the codes of the model's languages, and its end tokens if they are not the pipeline's own."""
        self.languages = list(known)
        self.capabilities: list[str] = []
        self.properties: dict[str, Any] = {}
        """Properties for the pipeline's constructor."""
        self._ends = list(ends)

    def limit(self, job: Job, texts: Texts) -> int:
        """Returns the most tokens that the text of a window may have."""
        return min(job.max_tokens or self.max_tokens, self.max_tokens)

    def options(self, job: Job, texts: Texts) -> dict[str, Any]:
        found: dict[str, Any] = {"max_new_tokens": self.limit(job, texts), **_sampling(job.params)}
        if self._ends:
            found |= {"eos_token_id": self._ends[0], "stop_token_ids": set(self._ends)}
        if job.language:
            found["language"] = languages.name_of(job.language).title()
        return found | self._texts(texts)

    def _texts(self, texts: Texts) -> dict[str, Any]:
        both = " ".join(filter(None, (texts.prompt, texts.hotwords)))
        return {"context": both} if both else {}

    def result(self, job: Job, texts: Texts, found: Any) -> WindowDone:
        """Converts the pipeline's result of a window.

        Args:
            job: The job of the window.
            texts: The texts that the model was given with the audio.
            found: The result of the pipeline's generate.
        """
        text, tokens = languages.separated(found.texts[0].lstrip()), found.perf_metrics.get_num_generated_tokens()
        named = found.languages[0] if found.languages else ""
        return WindowDone(
            text=text,
            language=languages.find(named.rpartition(",")[2], self.languages) or job.language,
            segments=_whole(job, text) if job.times and job.params.segments else [],
            prompt_tokens=texts.tokens,
            tokens=tokens,
            stopped="length" if tokens >= self.limit(job, texts) else "stop",
        )

    def delta(self, job: Job, text: str) -> TextDelta:
        """Converts new text of a window to a delta."""
        if not job.begun:
            job.begun = True
            text = languages.separated(text.lstrip())
        return TextDelta(text)


class FunAsr(Kind):
    """The kind of Fun-ASR-Nano, which takes only the language with the audio, and does not detect it."""

    max_prompt_tokens = 0

    def _texts(self, texts: Texts) -> dict[str, Any]:
        return {}


class Whisper(Kind):
    """The kind of Whisper, with timestamps of segments, beam search, and word times if it was loaded for them."""

    def __init__(self, files: whisper_files.WhisperFiles, words: bool) -> None:
        """Keeps the model's sizes and special tokens, and whether the pipeline is loaded for word times."""
        super().__init__(list(files.languages) or ["en"])
        self.capabilities = ["beams", *(["words"] if words else [])]
        self.properties = {"word_timestamps": True} if words else {}
        self.translates = TRANSLATE in files.tasks
        self.positions = files.positions
        self.max_prompt_tokens = files.positions // 2 - 1
        self.max_tokens = files.positions - 4
        self.window = files.frames * whisper_files.HOP
        self._many = bool(files.languages)

    def limit(self, job: Job, texts: Texts) -> int:
        room = self.max_tokens - texts.tokens
        return max(1, min(job.max_tokens or room, room))

    def _times(self, job: Job, texts: Texts) -> bool:
        return job.times and self.limit(job, texts) >= MIN_TIMED

    def options(self, job: Job, texts: Texts) -> dict[str, Any]:
        params, times = job.params, self._times(job, texts)
        found = super().options(replace(job, language=""), texts)
        found |= {"return_timestamps": times, "word_timestamps": times and params.words}
        if self._many:
            found["task"] = params.task
            if job.language:
                found["language"] = f"<|{job.language}|>"
        if params.beams > 1:
            found |= {"num_beams": params.beams, "length_penalty": params.length_penalty}
        return found

    def _texts(self, texts: Texts) -> dict[str, Any]:
        named = {"initial_prompt": texts.prompt, "hotwords": texts.hotwords}
        return {name: text for name, text in named.items() if text}

    def result(self, job: Job, texts: Texts, found: Any) -> WindowDone:
        made = super().result(job, texts, found)
        made.text, made.language = found.texts[0], made.language or "en"
        if not self._times(job, texts):
            return made
        if job.params.segments and found.chunks:
            made.segments = _segments(job, found.chunks[0])
        if job.params.words and found.words:
            made.words = _words(job, found.words[0])
        return made

    def delta(self, job: Job, text: str) -> TextDelta:
        return TextDelta(text)


def read(path: Path, vocabulary: Vocabulary, words: bool) -> Kind:
    """Returns the kind of the model in a directory. Raises StartError."""
    config = files.read_object(path / "config.json")
    kind = config.get("model_type")
    if kind == "whisper":
        return Whisper(whisper_files.read(path), words)
    if kind not in ("qwen3_asr", "fun_asr"):
        raise StartError(
            f"config.json: openvino-genai only transcribes with whisper, qwen3_asr and fun_asr, not with {kind!r}"
        )
    if words:
        raise StartError("--enable_word_timestamps: this model does not report the times of words")
    ends = [number for number, piece in enumerate(vocabulary.pieces) if piece in QWEN_ENDS]
    if kind == "fun_asr":
        return FunAsr(FUN_LANGUAGES, ends)
    named = config.get("support_languages") or ()
    known = [languages.find(str(name), languages.NAMES) for name in named]
    return Kind([code for code in known if code] or QWEN_LANGUAGES, ends)


def _sampling(params: TranscribeParams) -> dict[str, Any]:
    found: dict[str, Any] = {
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
    }
    if params.temperature > 0 and params.beams == 1:
        found |= {"do_sample": True, "temperature": params.temperature, "top_p": params.top_p}
        found["rng_seed"] = (params.seed or 0) & MAX_SEED
        if params.top_k > 0:
            found["top_k"] = params.top_k
    return found


def _whole(job: Job, text: str) -> list[Segment]:
    return [Segment(start=round(job.start, 3), end=round(job.end, 3), text=text)] if text.strip() else []


def _segments(job: Job, chunks: Sequence[Any]) -> list[Segment]:
    """Converts the pipeline's chunks to segments within the window.

    A chunk that the window cuts has a negative end in the pipeline's result, and others may end after the window.
    """
    found = []
    for chunk in chunks:
        start = job.start + chunk.start_ts
        end = job.start + chunk.end_ts if chunk.end_ts >= chunk.start_ts else job.end
        if chunk.text.strip() and start < job.end:
            found.append(Segment(start=round(start, 3), end=round(min(end, job.end), 3), text=chunk.text))
    return found


def _words(job: Job, chunks: Sequence[Any]) -> list[Word]:
    found: list[Word] = []
    latest = job.start
    for chunk in chunks:
        start = max(latest, min(job.start + chunk.start_ts, job.end))
        end = max(start, min(job.start + chunk.end_ts, job.end))
        if chunk.text.strip():
            found.append(Word(word=chunk.text.strip(), start=round(start, 3), end=round(end, 3)))
            latest = start
    return found

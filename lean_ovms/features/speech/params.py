"""What a speech model can do, how audio is transcribed, and the events of a transcription.

    api --audio blocks, TranscribeParams--> model --> engine
    api <---------- SpeechEvent ----------- model <-- engine

Audio is as in types.audio. Times are seconds from the beginning of the request's audio. Both processes use this module;
it has no behaviour beyond trivial properties.
"""

from __future__ import annotations

from dataclasses import dataclass, field

WINDOW_S = 30.0
"""The longest audio that Whisper takes at once, in seconds."""
AHEAD_S = 60.0
"""Audio that the front end sends beyond what the engine has transcribed; then it waits."""

TRANSCRIBE = "transcribe"
TRANSLATE = "translate"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechInfo:
    """What a loaded speech-to-text model can do.

    languages: codes that it knows, most used first ("en" alone: an English model). translates: into English.
    max_tokens: of one window's answer. max_prompt_tokens: of prompt and hotwords together.
    capabilities: "logprobs": avg_logprob, no_speech_prob and log probabilities of tokens; "words": word times;
    "timed_stream": text streams also with timestamps; "fallback": the temperature ladder; "beams".
    backend: what decodes, "decode_loop" or "asr_pipeline"; vad: "silero" or "energy".
    """

    languages: list[str]
    translates: bool
    max_tokens: int
    max_prompt_tokens: int
    capabilities: list[str] = field(default_factory=list)
    backend: str = ""
    vad: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDetection:
    """Where utterances begin and end, by voice activity (OpenAI's server_vad). threshold: 0 to 1."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeParams:
    """How the audio of one request is transcribed. Complete and in range: defaults are filled in, values validated.

    language: a code, "" to detect it on the first window with speech. prompt: text before the first window; hotwords:
    before every one. segments, words: times are wanted; either needs a model that has them.
    temperature: 0: greedy. fallback: higher temperatures where the text is improbable or repeats itself (Whisper's
    ladder); the text of a window then comes in one TextDelta at its end, and without it token by token.
    beams: width; 1: none. max_tokens: of the whole request, 0: no limit of its own. logprobs: of each token.
    turns: utterances are found by voice activity, and each is transcribed by itself (realtime), with times in several
    windows where the model leaves a part of it; None: the audio is one text, cut into windows at quiet places.
    partials: text of an utterance before it has ended. live: comes before files. vad: windows without speech are
    skipped. priority: lower is sooner.
    """

    task: str = TRANSCRIBE
    language: str = ""
    prompt: str = ""
    hotwords: str = ""
    segments: bool = False
    words: bool = False
    temperature: float = 0.0
    fallback: bool = True
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    beams: int = 1
    length_penalty: float = 1.0
    max_tokens: int = 0
    logprobs: bool = False
    turns: TurnDetection | None = None
    partials: bool = False
    live: bool = False
    vad: bool = True
    priority: int = 0


@dataclass(slots=True, kw_only=True)
class Segment:
    """A piece of text with its times. tokens: ids without timestamps. avg_logprob, no_speech_prob: None if the backend
    does not know them. temperature: with which it was decoded. compression_ratio: of its window's text."""

    start: float
    end: float
    text: str
    tokens: list[int] = field(default_factory=list)
    avg_logprob: float | None = None
    no_speech_prob: float | None = None
    temperature: float = 0.0
    compression_ratio: float = 1.0


@dataclass(slots=True, kw_only=True)
class Word:
    """A word without its spaces."""

    word: str
    start: float
    end: float


# --- events of a request, in order


@dataclass(slots=True)
class TextDelta:
    """New text; all deltas of a window together are its text, with the space that separates it from the text before.
    logprobs: [token text, log probability] of each token, if wanted and known."""

    text: str
    logprobs: list[tuple[str, float]] | None = None


@dataclass(slots=True, kw_only=True)
class WindowDone:
    """A window, or an utterance, has been transcribed up to `end`. text: all of it, also what was sent as deltas.

    segments, words: if wanted. language: detected or given; language_probability: if detected and known.
    prompt_tokens, tokens: of the decoder. skipped: seconds without speech that were not transcribed.
    stopped: "stop", or "length" where max_tokens or the model's limit cut the text.
    """

    start: float = 0.0
    end: float = 0.0
    text: str
    language: str = ""
    language_probability: float | None = None
    segments: list[Segment] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    prompt_tokens: int = 0
    tokens: int = 0
    skipped: float = 0.0
    stopped: str = "stop"


@dataclass(slots=True)
class TurnStarted:
    """Speech began at this time (with TranscribeParams.turns)."""

    at: float


@dataclass(slots=True)
class TurnStopped:
    """Speech ended at this time; the utterance's deltas and WindowDone follow."""

    at: float


SpeechEvent = TextDelta | WindowDone | TurnStarted | TurnStopped
"""What a transcription yields. It ends after the last WindowDone, or raises RequestError."""

"""Declares what a speech model can do, how audio is transcribed, and the events of a transcription.

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
    """The properties of a loaded speech-to-text model."""

    languages: list[str]
    """The codes that it knows, most used first ("en" alone: an English model)."""
    translates: bool
    """Whether it translates into English."""
    max_tokens: int
    """The most tokens of one window's answer."""
    max_prompt_tokens: int
    """The most tokens of prompt and hotwords together."""
    capabilities: list[str] = field(default_factory=list)
    """"logprobs": avg_logprob, no_speech_prob and log probabilities of tokens; "words": word times; "timed_stream":
    text streams also with timestamps; "fallback": the temperature ladder; "beams"."""
    backend: str = ""
    """What decodes, "decode_loop" or "asr_pipeline"."""
    vad: str = ""
    """What finds voice activity, "silero" or "energy"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDetection:
    """The settings that find utterances by voice activity (OpenAI's server_vad)."""

    threshold: float = 0.5
    """How probable voice must be, from 0 to 1."""
    prefix_padding_ms: int = 300
    """The milliseconds before the voice that are part of an utterance."""
    silence_duration_ms: int = 500
    """The milliseconds without voice that end an utterance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeParams:
    """The parameters with which the audio of one request is transcribed. Complete and in range: defaults are filled in,
    values validated."""

    task: str = TRANSCRIBE
    """TRANSCRIBE or TRANSLATE."""
    language: str = ""
    """The code of the language; empty: it is detected on the first window with speech."""
    prompt: str = ""
    """The text before the first window."""
    hotwords: str = ""
    """The text before every window."""
    segments: bool = False
    """Whether times of segments are wanted; the model must have them."""
    words: bool = False
    """Whether times of words are wanted; the model must have them."""
    temperature: float = 0.0
    """What logits are divided by; 0: the likeliest token is taken."""
    fallback: bool = True
    """Whether higher temperatures are tried where the text is improbable or repeats itself (Whisper's ladder). The text
    of a window then comes in one TextDelta at its end, and without it token by token."""
    top_p: float = 1.0
    """Only the likeliest tokens with this probability together may be drawn; 1: all."""
    top_k: int = 0
    """Only so many of the likeliest tokens may be drawn; 0: all."""
    seed: int | None = None
    """The seed of what is drawn; None: any."""
    repetition_penalty: float = 1.0
    """The divisor of the positive logits, and factor of the negative ones, of tokens of the text."""
    presence_penalty: float = 0.0
    """What is subtracted from the logit of each token of the text."""
    frequency_penalty: float = 0.0
    """What is subtracted from that logit for each time that the token was generated."""
    beams: int = 1
    """The width of a beam search; 1: there is none."""
    length_penalty: float = 1.0
    """The power of the length that divides the score of a beam."""
    max_tokens: int = 0
    """The most tokens of the whole request; 0: it has no limit of its own."""
    logprobs: bool = False
    """Whether the log probability of each token is wanted."""
    turns: TurnDetection | None = None
    """Utterances are found by voice activity, and each is transcribed by itself (realtime), with times in several
    windows where the model leaves a part of it; None: the audio is one text, cut into windows at quiet places."""
    partials: bool = False
    """Whether text of an utterance is sent before it has ended."""
    live: bool = False
    """Whether it comes before files."""
    vad: bool = True
    """Whether windows without speech are skipped."""
    priority: int = 0
    """The lower one is sooner."""


@dataclass(slots=True, kw_only=True)
class Segment:
    """A piece of text with its times."""

    start: float
    """When it begins, in seconds."""
    end: float
    """When it ends, in seconds."""
    text: str
    """The text."""
    tokens: list[int] = field(default_factory=list)
    """The ids without timestamps."""
    avg_logprob: float | None = None
    """The mean log probability of its tokens; None: the backend does not know it."""
    no_speech_prob: float | None = None
    """The probability that nobody speaks; None: the backend does not know it."""
    temperature: float = 0.0
    """The temperature with which it was decoded."""
    compression_ratio: float = 1.0
    """How much shorter its window's text is when it is compressed, which repetitions are."""


@dataclass(slots=True, kw_only=True)
class Word:
    """A word without its spaces."""

    word: str
    """The word."""
    start: float
    """When it begins, in seconds."""
    end: float
    """When it ends, in seconds."""


# --- events of a request, in order


@dataclass(slots=True)
class TextDelta:
    """New text; all deltas of a window together are its text, with the space that separates it from the text before."""

    text: str
    """The text."""
    logprobs: list[tuple[str, float]] | None = None
    """The text and the log probability of each token; None: they are not wanted, or not known."""


@dataclass(slots=True, kw_only=True)
class WindowDone:
    """A window, or an utterance, has been transcribed."""

    start: float = 0.0
    """When it begins, in seconds."""
    end: float = 0.0
    """Up to where it has been transcribed, in seconds."""
    text: str
    """All of its text, also what was sent as deltas."""
    language: str = ""
    """The language that was detected or given."""
    language_probability: float | None = None
    """The probability of a language that was detected; None: not known."""
    segments: list[Segment] = field(default_factory=list)
    """The segments, if they are wanted."""
    words: list[Word] = field(default_factory=list)
    """The words, if they are wanted."""
    prompt_tokens: int = 0
    """The tokens of the decoder's prompt."""
    tokens: int = 0
    """The tokens that the decoder has generated."""
    skipped: float = 0.0
    """The seconds without speech that were not transcribed."""
    stopped: str = "stop"
    """"stop", or "length" where max_tokens or the model's limit cut the text."""


@dataclass(slots=True)
class TurnStarted:
    """Speech began at this time (with TranscribeParams.turns)."""

    at: float
    """The time in seconds."""


@dataclass(slots=True)
class TurnStopped:
    """Speech ended at this time; the utterance's deltas and WindowDone follow."""

    at: float
    """The time in seconds."""


SpeechEvent = TextDelta | WindowDone | TurnStarted | TurnStopped
"""What a transcription yields. It ends after the last WindowDone, or raises RequestError."""

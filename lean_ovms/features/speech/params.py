"""Declares the description of a speech model, the parameters of a transcription, and its events.

    api --audio blocks, TranscribeParams--> model --> engine
    api <---------- SpeechEvent ----------- model <-- engine

Audio has the format of types.audio. Times are seconds from the beginning of the request's audio. Both processes use
this module; it has no behaviour beyond trivial properties.
"""

from __future__ import annotations

from dataclasses import dataclass, field

WINDOW_S = 30.0
"""The longest audio that Whisper takes at once, in seconds."""
AHEAD_S = 60.0
"""Audio that the front end sends beyond what the engine has transcribed; then it waits."""
TOKEN_CHARACTERS = 16
"""Characters of a prompt for each token that the model reads; words have four to six for each."""

TRANSCRIBE = "transcribe"
TRANSLATE = "translate"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechInfo:
    """The properties of a loaded speech-to-text model."""

    languages: list[str]
    """The codes of its languages, most used first; only "en" for an English-only model."""
    translates: bool
    """Whether it translates into English."""
    max_tokens: int
    """The most tokens of one window's text."""
    max_prompt_tokens: int
    """The most tokens of prompt and hotwords together."""
    capabilities: list[str] = field(default_factory=list)
    """"logprobs": avg_logprob, no_speech_prob and log probabilities of tokens; "words": word times; "timed_stream":
    text can be streamed although timestamps are computed; "fallback": the temperature fallback; "beams": beam search.
    """
    backend: str = ""
    """The decoder, "decode_loop" (this project's) or "asr_pipeline" (openvino_genai's)."""
    vad: str = ""
    """The voice activity detector, "silero" or "energy"."""

    def end_of(self, text: str) -> str:
        """Returns the end of a prompt or of hotwords, with at least the tokens that the model reads.

        The engine process tokenizes it before each window: a third of a second for a megabyte.
        """
        return text[max(0, len(text) - self.max_prompt_tokens * TOKEN_CHARACTERS) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDetection:
    """The settings for finding utterances by voice activity (OpenAI's server_vad)."""

    threshold: float = 0.5
    """The probability from which a frame counts as speech, from 0 to 1."""
    prefix_padding_ms: int = 300
    """The milliseconds before the speech that belong to its utterance."""
    silence_duration_ms: int = 500
    """The milliseconds without speech that end an utterance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeParams:
    """The parameters of one request's transcription. Defaults are filled in and values are validated."""

    task: str = TRANSCRIBE
    """TRANSCRIBE or TRANSLATE."""
    language: str = ""
    """The code of the language; "" if it is detected in the first window with speech."""
    prompt: str = ""
    """The text that precedes the first window's text."""
    hotwords: str = ""
    """The text that the model gets with every window, with words that are likely."""
    segments: bool = False
    """Whether times of segments are requested; the model must be able to compute them."""
    words: bool = False
    """Whether times of words are requested; the model must be able to compute them."""
    temperature: float = 0.0
    """The sampling temperature; 0 if the likeliest token is chosen."""
    fallback: bool = True
    """Whether higher temperatures are tried if the text is improbable or repeats itself, as in OpenAI's Whisper. The
    text of a window is then sent in one TextDelta at its end, otherwise token by token."""
    top_p: float = 1.0
    """The cumulative probability of the likeliest tokens among which one is sampled; 1 for all tokens."""
    top_k: int = 0
    """The number of the likeliest tokens among which one is sampled; 0 for all tokens."""
    seed: int | None = None
    """The seed of sampling; None for any seed."""
    repetition_penalty: float = 1.0
    """The divisor of positive logits and the factor of negative ones, for tokens that are in the text."""
    presence_penalty: float = 0.0
    """The number that is subtracted from the logits of tokens that are in the text."""
    frequency_penalty: float = 0.0
    """The number that is subtracted from the logit of a token for each time that it is in the text."""
    beams: int = 1
    """The number of beams; 1 for no beam search."""
    length_penalty: float = 1.0
    """The power of the length by which a beam's log probability is divided."""
    max_tokens: int = 0
    """The most tokens of the whole request; 0 for no limit."""
    logprobs: bool = False
    """Whether the log probability of each token is requested."""
    turns: TurnDetection | None = None
    """The settings by which utterances are found, each of which is transcribed by itself (realtime); None if the audio
    is one text, which is cut into windows at quiet places."""
    partials: bool = False
    """Whether text of an utterance is sent before it has ended."""
    live: bool = False
    """Whether the request takes precedence over files, as somebody is speaking."""
    vad: bool = True
    """Whether windows without speech are skipped."""


@dataclass(slots=True, kw_only=True)
class Segment:
    """A piece of text with its times."""

    start: float
    """The beginning, in seconds."""
    end: float
    """The end, in seconds."""
    text: str
    """The text."""
    tokens: list[int] = field(default_factory=list)
    """The token ids, without timestamps."""
    avg_logprob: float | None = None
    """The mean log probability of its tokens; None if the backend does not know it."""
    no_speech_prob: float | None = None
    """The probability that nobody speaks; None if the backend does not know it."""
    temperature: float = 0.0
    """The temperature with which it was decoded."""
    compression_ratio: float = 1.0
    """The size of its window's text divided by the compressed size, which is high if the text repeats itself."""


@dataclass(slots=True, kw_only=True)
class Word:
    """A word without its spaces."""

    word: str
    """The word."""
    start: float
    """The beginning, in seconds."""
    end: float
    """The end, in seconds."""


# --- events of a request, in order


@dataclass(slots=True)
class TextDelta:
    """New text of a window; its deltas joined are its text, with the space that separates it from the text before."""

    text: str
    """The text."""
    logprobs: list[tuple[bytes, float]] | None = None
    """The bytes and the log probability of each token; None if they are not requested or not known."""


@dataclass(slots=True, kw_only=True)
class WindowDone:
    """The event that a window or an utterance has been transcribed."""

    start: float = 0.0
    """The beginning, in seconds."""
    end: float = 0.0
    """The time up to which the audio has been transcribed, in seconds."""
    text: str
    """The whole text of the window, including that of its deltas."""
    language: str = ""
    """The language that was detected or given."""
    language_probability: float | None = None
    """The probability of the detected language; None if it is not known."""
    segments: list[Segment] = field(default_factory=list)
    """The segments, if they are requested."""
    words: list[Word] = field(default_factory=list)
    """The words, if they are requested."""
    prompt_tokens: int = 0
    """The number of tokens of the decoder's prompt."""
    tokens: int = 0
    """The number of tokens that the decoder has generated."""
    skipped: float = 0.0
    """The seconds without speech that were not transcribed."""
    stopped: str = "stop"
    """"stop", or "length" if max_tokens or the model's limit cut the text."""


@dataclass(slots=True)
class TurnStarted:
    """The event that speech began (with TranscribeParams.turns)."""

    at: float
    """The time in seconds."""


@dataclass(slots=True)
class TurnStopped:
    """The event that speech ended; the utterance's deltas and WindowDone follow."""

    at: float
    """The time in seconds."""


SpeechEvent = TextDelta | WindowDone | TurnStarted | TurnStopped
"""An event of a transcription, which ends after the last WindowDone, or raises RequestError."""

"""Declares the requests to an engine, and what it reports: its model's vocabulary and properties, and its counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import Image, Json, SamplingParams

if TYPE_CHECKING:
    from .audio import VoiceInfo

CLEAN_UP = r" (?:[.?!,\\]|'[ms]|' |'[rv]e|n't)"
"""The effect of clean_up_tokenization_spaces: spaces at the ends of each match are removed."""

SPEECH = "speech"
"""The capability of models that speak their answers."""
CAPABILITIES = {
    "top_logprobs": "alternatives",
    "logprob_token_ids": "alternatives",
    "prompt_top_logprobs": "alternatives",
    "logit_bias": "logit_edits",
    "sampler_chain": "logit_edits",
    "allowed_token_ids": "logit_edits",
    "bad_words": "logit_edits",
    "thinking_token_budget": "logit_edits",
    "early_stopping": "beam_control",
    "cache_salt": "cache_salt",
    "lora": "adapters",
    "report_progress": "progress",
    "speaker": SPEECH,
}
"""The SamplingParams fields that not every engine supports, with the member of ModelInfo.capabilities each needs."""


@dataclass(slots=True, kw_only=True)
class EngineRequest:
    """A generation that the front end asks an engine for. An object is not changed once it is built."""

    prompt: str | list[int]
    """A text, which the engine tokenizes, or token ids."""
    sampling: SamplingParams
    """The sampling parameters."""
    add_special_tokens: bool
    """Whether the tokenizer adds special tokens to the text."""
    truncate: int | None = None
    """The number of prompt tokens to keep; None to keep all."""
    truncation_side: str = "left"
    """The end of the prompt at which tokens are cut off, "left" or "right"."""
    want_tokens: bool = False
    """Whether the reply has the token ids of the prompt."""
    constraint: str = ""
    """A structural tag, as JSON text, that the answer must match; "" for none."""
    images: Sequence[Image] = ()
    """The images for the tags in the prompt."""
    audio: Sequence[bytes] = ()
    """The samples for the audio tags in the prompt."""
    timeout_s: float = 0.0
    """The most seconds until the engine accepts the request; 0 for no limit."""
    client: str = ""
    """The name of the client that sends it. Clients share the engine's time fairly."""
    group: int = 0
    """The number of the HTTP request, which may have several prompts; 0 if it has only this one."""
    priority: int = 0
    """The priority; lower values start first."""
    adapter: str = ""
    """The LoRA adapters in the notation of the model's set of adapters; "" for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The bytes of every token, as the model's own detokenizer prints them in the middle of a text."""

    pieces: list[bytes]
    """The bytes of each token, indexed by its id. Byte-fallback tokens are single bytes."""
    special: frozenset[int] = frozenset()
    """The ids that skip_special_tokens omits."""
    strip_leading_space: bool = False
    """Whether the detokenizer removes one space at the very start of a text (SentencePiece)."""
    clean_up: bool = False
    """Whether the detokenizer removes spaces before punctuation (clean_up_tokenization_spaces)."""
    exact: bool = True
    """Whether the table was verified against the detokenizer; if not, the engine decodes text."""

    @property
    def longest(self) -> int:
        """The bytes of the longest token, which no token has more characters than; 64 if the vocabulary is unknown."""
        return max(map(len, self.pieces), default=0) or 64

    def to_wire(self) -> Json:
        """Returns the fields as JSON, with each byte of a token as a latin-1 character."""
        pieces = [piece.decode("latin-1") for piece in self.pieces]
        same = {name: getattr(self, name) for name in ("strip_leading_space", "exact", "clean_up")}
        return {"pieces": pieces, "special": sorted(self.special), **same}

    @classmethod
    def from_wire(cls, found: Json) -> Vocabulary:
        """Creates the object again from what `to_wire` returned. Raises TypeError, ValueError or KeyError."""
        pieces = [piece.encode("latin-1") for piece in found["pieces"]]
        return cls(**{**found, "pieces": pieces, "special": frozenset(found["special"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The properties of a loaded model, which the engine sends once, when it is ready.

    Fields about text generation have their defaults for other tasks.
    """

    vocab_size: int
    """The size of the vocabulary, including padding."""
    context_length: int
    """The most tokens of a request, prompt and generated tokens together."""
    kv_blocks: int = 0
    """The number of blocks in the KV cache."""
    block_size: int = 0
    """The number of tokens in a block."""
    max_sequences: int = 0
    """The most sequences that can run at once, limited by the memory for their states; 0 for no such limit."""
    state_bytes: int = 0
    """The size in bytes of the states of one sequence."""
    eos_token_ids: list[int] = field(default_factory=list)
    """The ids of all tokens that end a text."""
    pad_token_id: int = 0
    """The id of the padding token."""
    bos_token: str = ""
    """The text of the BOS token."""
    eos_token: str = ""
    """The text of the EOS token."""
    chat_template: str = ""
    """The chat template that is stored in the tokenizer; "" for none."""
    speculative: str = ""
    """The kind of speculative decoding: "draft", "mtp", "eagle3", "prompt_lookup", or "" for none."""
    prefix_caching: bool = False
    """Whether prompts share cached prefixes."""
    versions: dict[str, str]
    """The versions of the libraries by name."""
    vision: bool = False
    """Whether the model reads images."""
    video: bool = False
    """Whether it reads videos."""
    audio: bool = False
    """Whether it takes audio."""
    image_tokens: list[str] = field(default_factory=list)
    """The model's own placeholders for images and audio, which clients may not write."""
    kv_precision: str = ""
    """The element type of keys and values in the cache, or both as in "u8/u4" if they differ; "" if unknown."""
    pipeline: str = ""
    """The pipeline that serves the model, one of the values of --pipeline_type."""
    pipeline_reason: str = ""
    """The reason why AUTO selected the pipeline."""
    capabilities: list[str] = field(default_factory=list)
    """The features of the engine that not every engine has. "alternatives": log probabilities of tokens that were not
    chosen, of the answer and of the prompt, also with the prefix cache. "logit_edits", "cache_salt", "progress": see
    CAPABILITIES. "beam_control": early_stopping, and grammars with beam search and with min_tokens. "cached_tokens":
    the number of cached tokens of each request. "adapters": a request may name a LoRA adapter. "speech": the model
    speaks its answers."""
    voices: VoiceInfo | None = None
    """The voices of a model that speaks texts, or its answers."""
    of_task: Json = field(default_factory=dict)
    """The properties that the feature of the model's task, or of its adapters, reports."""

    @classmethod
    def from_json(cls, values: Json) -> ModelInfo:
        """Creates an object from the result of its dataclasses.asdict(). Raises TypeError."""
        values = dict(values)
        if values.get("voices"):
            from .audio import VoiceInfo

            values["voices"] = VoiceInfo(**values["voices"])
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The engine's counters between two steps.

    For tasks of features, running, queued and steps count the units of their work, such as texts and batches of texts.
    """

    running: int
    """The number of running sequences."""
    queued: int
    """The number of waiting sequences."""
    steps: int
    """The number of steps since the start."""
    kv_blocks_used: int = 0
    """The number of KV blocks that running requests use."""
    kv_blocks_total: int = 0
    """The number of blocks in the KV cache."""
    preemptions: int = 0
    """The number of preemptions since the start."""
    recoveries: int = 0
    """The number of failed steps that were repeated since the start."""
    state_bytes: int = 0
    """The size in bytes of the states of running sequences, without keys and values."""
    speculative: bool = False
    """Whether draft tokens are used."""
    drafts: int = 0
    """The number of verified drafts."""
    drafted: int | None = None
    """The number of draft tokens; None if unknown."""
    accepted: int = 0
    """The number of accepted draft tokens."""
    accepted_by_position: Sequence[int] = ()
    """The number of accepted draft tokens by their position in the draft."""
    of_features: Mapping[str, float] = field(default_factory=dict)
    """The values of features' metrics by name."""

"""What an engine reports: the vocabulary and the properties of its model, and its own counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import Json

if TYPE_CHECKING:
    from .audio import VoiceInfo

CLEAN_UP = r" (?:[.?!,\\]|'[ms]|' |'[rv]e|n't)"
"""clean_up_tokenization_spaces as a regular expression: each match loses the spaces at its ends."""

SPEECH = "speech"
"""The capability of models that speak their answers."""
CAPABILITIES = {
    "top_logprobs": "alternatives",
    "logprob_token_ids": "alternatives",
    "prompt_top_logprobs": "alternatives",
    "logit_bias": "logit_edits",
    "allowed_token_ids": "logit_edits",
    "bad_words": "logit_edits",
    "thinking_token_budget": "logit_edits",
    "early_stopping": "beam_control",
    "cache_salt": "cache_salt",
    "report_progress": "progress",
    "speaker": SPEECH,
}
"""Fields of SamplingParams that not every engine supports, with the member of ModelInfo.capabilities that they need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Bytes of every token id, as the model's own detokenizer prints it in the middle of a text.

    pieces[i]: the bytes of id i (byte-fallback ids are single bytes). special: ids hidden by skip_special_tokens.
    strip_leading_space: the detokenizer drops one space at the very start of the text (SentencePiece).
    clean_up: it removes spaces before punctuation (openvino_tokenizers' clean_up_tokenization_spaces).
    exact: False when the table could not be verified against the detokenizer; then the engine decodes text.
    """

    pieces: list[bytes]
    special: frozenset[int] = frozenset()
    strip_leading_space: bool = False
    clean_up: bool = False
    exact: bool = True

    @property
    def longest(self) -> int:
        """Bytes of the longest token, an upper bound of its characters; 64 for an unknown vocabulary."""
        return max(map(len, self.pieces), default=0) or 64

    def to_wire(self) -> Json:
        """Returns its fields as protocol.Ready has them: bytes as latin-1 texts."""
        pieces = [piece.decode("latin-1") for piece in self.pieces]
        same = {name: getattr(self, name) for name in ("strip_leading_space", "exact", "clean_up")}
        return {"pieces": pieces, "special": sorted(self.special), **same}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a loaded engine knows about its model; sent once, when it is ready.

    context_length: limit of prompt + generated tokens of one request. kv_blocks: blocks of the KV cache. block_size:
    tokens per block. kv_precision: element type of keys and values, or "u8/u4" where they differ; "" if not known.
    eos_token_ids: every id that ends a text. chat_template: the one stored in the tokenizer, or "".
    speculative: "", "draft", "mtp", "eagle3" or "prompt_lookup". versions: of the libraries, by name.
    sentencepiece: grammars are matched against text with "▁" for a space and "<0x0A>" for a byte.
    capabilities: what not every engine can do. "alternatives": log probabilities of tokens that were not chosen, of
    generated tokens and of the prompt's, also with the prefix cache. "logit_edits", "cache_salt", "progress": see
    CAPABILITIES. "beam_control": early_stopping, and grammars with beam search and with min_tokens. "cached_tokens": it
    counts them itself, for each request. "adapters": a request may name a LoRA adapter. "speech": the model
    speaks its answers.
    max_sequences: that run at once at most, because of their states' memory; 0: no such limit. state_bytes: of one.
    vision: the model reads images. video: and videos. audio: and hears. image_tokens: the model's own placeholders for
    images and audio, refused from clients.
    of_task: what the feature of the model's task reports.
    voices: of a model that speaks texts, or its answers. What is only of text generation keeps its default elsewhere.
    pipeline: what serves it, one of --pipeline_type's values; pipeline_reason: why AUTO took it.
    """

    vocab_size: int
    context_length: int
    kv_blocks: int = 0
    block_size: int = 0
    max_sequences: int = 0
    state_bytes: int = 0
    eos_token_ids: list[int] = field(default_factory=list)
    pad_token_id: int = 0
    bos_token: str = ""
    eos_token: str = ""
    chat_template: str = ""
    speculative: str = ""
    prefix_caching: bool = False
    versions: dict[str, str]
    sentencepiece: bool = False
    vision: bool = False
    video: bool = False
    audio: bool = False
    image_tokens: list[str] = field(default_factory=list)
    kv_precision: str = ""
    pipeline: str = ""
    pipeline_reason: str = ""
    capabilities: list[str] = field(default_factory=list)
    voices: VoiceInfo | None = None
    of_task: Json = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Json) -> ModelInfo:
        """Returns the info whose dataclasses.asdict() these values are. Raises TypeError."""
        values = dict(values)
        if values.get("voices"):
            from .audio import VoiceInfo

            values["voices"] = VoiceInfo(**values["voices"])
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot of the engine's counters between two steps.

    running, queued: sequences. kv_blocks_used: by running requests. steps, preemptions, recoveries: since the start.
    state_bytes: memory of the states of running sequences, without keys and values.
    speculative: drafts are verified. drafts, drafted, accepted, accepted_by_position: as in SpecDecodeStats.
    of_features: values of features' metrics, by the names of the metrics.
    Of a task of a feature running, queued and steps are what it computes one by one, such as texts and their batches.
    """

    running: int
    queued: int
    steps: int
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    preemptions: int = 0
    recoveries: int = 0
    state_bytes: int = 0
    speculative: bool = False
    drafts: int = 0
    drafted: int | None = None
    accepted: int = 0
    accepted_by_position: Sequence[int] = ()
    of_features: Mapping[str, float] = field(default_factory=dict)

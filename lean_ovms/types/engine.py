"""Declares what an engine reports: the vocabulary and the properties of its model, and its own counters."""

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
    """Bytes of every token id, as the model's own detokenizer prints it in the middle of a text."""

    pieces: list[bytes]
    """The bytes of each id, at its place (byte-fallback ids are single bytes)."""
    special: frozenset[int] = frozenset()
    """The ids that skip_special_tokens hides."""
    strip_leading_space: bool = False
    """Whether the detokenizer drops one space at the very start of a text (SentencePiece)."""
    clean_up: bool = False
    """Whether it removes spaces before punctuation (openvino_tokenizers' clean_up_tokenization_spaces)."""
    exact: bool = True
    """Whether the table was verified against the detokenizer; if not, the engine decodes text."""

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
    """The properties of a loaded model; they are sent once, when the engine is ready.

    What is only of text generation keeps its default for other tasks.
    """

    vocab_size: int
    """The number of tokens that the network knows, padding included."""
    context_length: int
    """The most tokens of one request, those of the prompt and those that are generated."""
    kv_blocks: int = 0
    """The blocks of the KV cache."""
    block_size: int = 0
    """The tokens of a block."""
    max_sequences: int = 0
    """The most sequences that run at once, because of the memory of their states; 0: there is no such limit."""
    state_bytes: int = 0
    """The bytes of the states of one sequence."""
    eos_token_ids: list[int] = field(default_factory=list)
    """Every id that ends a text."""
    pad_token_id: int = 0
    """The id of the token for padding."""
    bos_token: str = ""
    """The text of the token that begins a text."""
    eos_token: str = ""
    """The text of the token that ends one."""
    chat_template: str = ""
    """The chat template that is stored in the tokenizer; "" for none."""
    speculative: str = ""
    """What drafts tokens: "", "draft", "mtp", "eagle3" or "prompt_lookup"."""
    prefix_caching: bool = False
    """Whether prompts may begin with what is computed of others."""
    versions: dict[str, str]
    """The versions of the libraries, by their names."""
    vision: bool = False
    """Whether the model reads images."""
    video: bool = False
    """Whether it reads videos."""
    audio: bool = False
    """Whether it takes audio."""
    image_tokens: list[str] = field(default_factory=list)
    """The model's own placeholders for images and audio, which clients may not write."""
    kv_precision: str = ""
    """The type of the elements of keys and values, or "u8/u4" where they differ; "" if it is not known."""
    pipeline: str = ""
    """What serves the model, one of the values of --pipeline_type."""
    pipeline_reason: str = ""
    """Why AUTO took it."""
    capabilities: list[str] = field(default_factory=list)
    """What not every engine can do. "alternatives": log probabilities of tokens that were not chosen, of the answer and
    of the prompt, also with the prefix cache. "logit_edits", "cache_salt", "progress": see CAPABILITIES.
    "beam_control": early_stopping, and grammars with beam search and with min_tokens. "cached_tokens": it counts them
    itself, for each request. "adapters": a request may name a LoRA adapter. "speech": the model speaks its answers."""
    voices: VoiceInfo | None = None
    """The voices of a model that speaks texts, or its answers."""
    of_task: Json = field(default_factory=dict)
    """What the feature of the model's task reports."""

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

    For tasks of features running, queued and steps count what is computed one by one, such as texts and their batches.
    """

    running: int
    """The sequences that run."""
    queued: int
    """The sequences that wait."""
    steps: int
    """The steps since the start."""
    kv_blocks_used: int = 0
    """The blocks of the KV cache that running requests have."""
    kv_blocks_total: int = 0
    """All blocks of the KV cache."""
    preemptions: int = 0
    """How often a sequence gave way to others, since the start."""
    recoveries: int = 0
    """How many failed steps were tried again, since the start."""
    state_bytes: int = 0
    """The memory of the states of running sequences, without keys and values."""
    speculative: bool = False
    """Whether draft tokens are verified."""
    drafts: int = 0
    """How often draft tokens were verified."""
    drafted: int | None = None
    """The draft tokens that were verified; None if that is not known."""
    accepted: int = 0
    """Those of them that were kept."""
    accepted_by_position: Sequence[int] = ()
    """Those that were kept, by their places in the drafts."""
    of_features: Mapping[str, float] = field(default_factory=dict)
    """The values of features' metrics, by the names of the metrics."""

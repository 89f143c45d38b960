"""The settings of speculative decoding that all pipelines share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...config import EngineConfig
from ...manifest import DRAFT_SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """The source of draft tokens; by default there is none."""

    model: Path | None = None
    """The directory or file of a draft model, or of a draft head for the model; None for none."""
    device: str = ""
    """The device of the draft model; empty for that of the main model."""
    cache_gb: int = 0
    """The size of the draft model's own KV cache in GB; 0 for as many blocks as the main model has."""
    step_tokens: int = 0
    """The most tokens that the draft model computes in one step; 0 for the same as the main model."""
    max_sequences: int = 0
    """The most sequences of the draft model that run at once; 0 for the same as the main model."""
    eagle3: bool = False
    """Whether the options say that the draft model is an Eagle-3 head of the model."""
    mtp: str = "false"
    """Whether the multi-token prediction head in the model's directory is used: true, false, or auto."""
    lookup: bool = False
    """Whether prompt lookup is used for requests that ask for it: it proposes what followed the same tokens earlier in
    the text."""
    named_by: Mapping[str, str] = field(default_factory=dict)
    """The options at fault if a pipeline fails to load with a message that contains one of these lower-case words."""
    ngrams: bool = False
    """Whether prompt lookup is also used for requests that do not ask for it, if the steps gain by it."""


def drafts_of(config: EngineConfig) -> Drafts:
    """Returns the source of draft tokens that the options select."""
    settings = config.part(DRAFT_SETTINGS)
    found: Drafts = Drafts() if settings is None else settings(config)
    return found

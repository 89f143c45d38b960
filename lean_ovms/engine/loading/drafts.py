"""Reads from the options what drafts tokens for a model, as far as every pipeline needs it."""

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
    """The directory or file of a draft model, or of a head of the model; None: there is none."""
    device: str = ""
    """The device of the draft model; empty: that of the model."""
    cache_gb: int = 0
    """The size of the draft model's own KV cache in GB; 0: it has as many blocks as the model."""
    step_tokens: int = 0
    """The most tokens that the draft model computes in one step; 0: as many as the model."""
    max_sequences: int = 0
    """The most sequences of the draft model that run at once; 0: as many as of the model."""
    eagle3: bool = False
    """Whether the draft model is said to be an Eagle-3 head of the model."""
    mtp: str = "false"
    """Whether the head for multi-token prediction in the model's directory drafts: true, false, or auto."""
    lookup: bool = False
    """Whether what followed the same tokens in the text is proposed to requests that ask for it."""
    named_by: Mapping[str, str] = field(default_factory=dict)
    """The options that are at fault where a pipeline does not load and says one of these words, in small letters."""
    ngrams: bool = False
    """Whether what followed the same tokens is proposed to requests that do not ask, too, where a step gains by it."""


def drafts_of(config: EngineConfig) -> Drafts:
    """Returns what drafts tokens by the options."""
    settings = config.part(DRAFT_SETTINGS)
    found: Drafts = Drafts() if settings is None else settings(config)
    return found

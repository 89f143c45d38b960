"""The dataclasses about the time that a request takes in the engine; see types.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How much of a prompt is computed. total, cached, processed: tokens; processed has the cached ones, too.

    time_ms: since the engine started with it.
    """

    total: int
    cached: int
    processed: int
    time_ms: float


@dataclass(frozen=True, slots=True)
class Timings:
    """How long a request took in the engine.

    cached: prompt tokens from the prefix cache, 0 if that is not known. prompt: those computed, in prompt_ms; 0.0 as
    long as that is not known. predicted: generated tokens of all choices, in predicted_ms since the first one.
    drafted, accepted: tokens of each draft of choices that have ended, and how many were kept; None: not known.
    queue_ms: before the engine started with the prompt; 0.0 as long as prompt_ms is not known.
    """

    cached: int
    prompt: int
    prompt_ms: float
    predicted: int
    predicted_ms: float
    queue_ms: float = 0.0
    drafted: Sequence[int] | None = None
    accepted: Sequence[int] = ()

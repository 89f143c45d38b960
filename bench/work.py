"""The workload: the prompts, which are the same for all contestants, the times of requests, and the order of
contestants.

All functions are pure and seeded, so the same arguments give the same work on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

TEXT = (
    "the quick brown fox jumps over a lazy dog and thinks about it while rain falls on every old stone of this quiet"
    " town where people talk and walk and no one knows what time will bring them"
)
WORDS = TEXT.split()
TASKS = (
    "Summarize this text.",
    "What do you think of this text?",
    "Write this text once more, without mistakes.",
    "List all names and numbers of this text in JSON.",
)

T = TypeVar("T")


@dataclass(kw_only=True)
class Work:
    """The work of a contestant in one round."""

    prompts: list[str]
    """The user messages of the chat requests, one per request."""
    max_tokens: int
    """The most tokens that a request generates."""
    concurrency: int
    """The number of concurrent requests in a closed loop, in which the next begins when one ends."""
    arrivals: list[float] = field(default_factory=list)
    """The start times of an open loop's requests, in seconds from the beginning, one per prompt; empty for a closed
    loop."""
    seconds: float = 0.0
    """After this time no request starts, but each stream has at least one; 0: no limit."""


@dataclass(kw_only=True)
class Outcome:
    """The result of a Work. Times are in seconds."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    """The CPU time of the process that did the work."""
    failed: int = 0
    events: int = 0
    prompt_tokens: int = 0
    first: list[float] = field(default_factory=list)
    """The time from the start of each request to its first token."""
    total: list[float] = field(default_factory=list)
    """The duration of each request."""
    tokens: list[int] = field(default_factory=list)
    """The number of generated tokens of each request."""
    gaps: list[float] = field(default_factory=list)
    """The times between arrivals of tokens of the same request, for all requests together."""

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of the whole run."""
        return sum(self.tokens) / self.wall_s if self.wall_s else 0.0

    @property
    def tpot(self) -> list[float]:
        """The mean time per token after the first, for each request."""
        rows = zip(self.first, self.total, self.tokens, strict=True)
        return [(total - first) / (count - 1) for first, total, count in rows if count > 1]

    def add(self, other: Outcome) -> None:
        """Adds another run of the same work."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def prompts(seed: int, count: int, words: int, spread: float = 0.0, shared: int = 0) -> list[str]:
    """Returns texts of about `words` words. They differ from the first word on, so prefix caches do not hold them.

    Args:
        seed: Determines the texts.
        count: The number of texts.
        words: The mean number of words.
        spread: By how much the lengths vary; with 0.5, from half to one and a half times the mean.
        shared: The number of words at the beginning that are the same in all texts of all seeds, like instructions.
            Prefix caches do hold these.
    """
    beginning = random.Random(0).choices(WORDS, k=shared)
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        size = max(1, round(words * rng.uniform(1 - spread, 1 + spread)))
        texts.append(" ".join([*beginning, f"{rng.randrange(10**6):06d}", *rng.choices(WORDS, k=size)]))
    return texts


def tasks(seed: int, count: int, words: int, spread: float, text: Sequence[str]) -> list[str]:
    """Returns prompts for real models: the TASKS in turn, each about another passage of a text.

    Args:
        seed: Determines the passages.
        count: The number of prompts.
        words: The mean number of words in a passage.
        spread: By how much the lengths vary.
        text: The words of the text.
    """
    rng = random.Random(seed)
    asked = []
    for number in range(count):
        size = min(len(text), max(1, round(words * rng.uniform(1 - spread, 1 + spread))))
        start = rng.randrange(len(text) - size + 1)
        passage = " ".join(text[start : start + size])
        asked.append(f"{rng.randrange(10**6):06d}. {TASKS[number % len(TASKS)]}\n\n{passage}")
    return asked


def poisson(seed: int, count: int, per_s: float) -> list[float]:
    """Returns the arrival times of a Poisson process, which is how the requests of many independent users arrive."""
    rng = random.Random(seed)
    now, times = 0.0, []
    for _ in range(count):
        now += rng.expovariate(per_s)
        times.append(now)
    return times


def turns(names: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Yields (round, name) with each name once a round, in reverse order every other round, so that drift
    favours none."""
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            yield number, name


def case_name(streams: int, rate: float) -> str:
    """Returns the name of a case in tables."""
    return f"{rate:g} requests/s" if rate else f"{streams} stream{'s' * (streams > 1)}"

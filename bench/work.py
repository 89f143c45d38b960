"""The workload: the same prompts for every contestant, when they are sent, and the order of the contestants.

Pure and seeded: the same numbers give the same work on every machine.
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
    """The work of one round of a contestant.

    prompts: of chat requests, one user message each. concurrency: how many at once, in a closed loop: the next begins
    when one ends. arrivals: seconds from the start at which requests begin, one per prompt (open loop: late or not).
    seconds: after that time no request starts, however many prompts are left, but one per stream; 0: no limit.
    """

    prompts: list[str]
    max_tokens: int
    concurrency: int
    arrivals: list[float] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(kw_only=True)
class Outcome:
    """The result of a Work, in seconds. Per request: first (from its start to its first token), total, tokens.

    gaps: between arrivals of tokens, the first excluded, all requests together. cpu_s: of the process that worked.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    failed: int = 0
    events: int = 0
    prompt_tokens: int = 0
    first: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of the whole run."""
        return sum(self.tokens) / self.wall_s if self.wall_s else 0.0

    @property
    def tpot(self) -> list[float]:
        """Of each request, the mean seconds per token after the first."""
        rows = zip(self.first, self.total, self.tokens, strict=True)
        return [(total - first) / (count - 1) for first, total, count in rows if count > 1]

    def add(self, other: Outcome) -> None:
        """Pool another run of the same work."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def prompts(seed: int, count: int, words: int, spread: float = 0.0, shared: int = 0) -> list[str]:
    """Texts of about `words` words, all different from the first word on, so that no prefix cache holds them.

    spread: 0.5 means half as long to one and a half times as long. shared: so many words that are the same in all
    texts of all seeds come first, as instructions do; a prefix cache holds these.
    """
    beginning = random.Random(0).choices(WORDS, k=shared)
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        size = max(1, round(words * rng.uniform(1 - spread, 1 + spread)))
        texts.append(" ".join([*beginning, f"{rng.randrange(10**6):06d}", *rng.choices(WORDS, k=size)]))
    return texts


def tasks(seed: int, count: int, words: int, spread: float, text: Sequence[str]) -> list[str]:
    """What is asked of real models: the TASKS in turns, each about another passage of about `words` words of a text."""
    rng = random.Random(seed)
    asked = []
    for number in range(count):
        size = min(len(text), max(1, round(words * rng.uniform(1 - spread, 1 + spread))))
        start = rng.randrange(len(text) - size + 1)
        passage = " ".join(text[start : start + size])
        asked.append(f"{rng.randrange(10**6):06d}. {TASKS[number % len(TASKS)]}\n\n{passage}")
    return asked


def poisson(seed: int, count: int, per_s: float) -> list[float]:
    """Arrival times of a Poisson process: what many independent users look like."""
    rng = random.Random(seed)
    now, times = 0.0, []
    for _ in range(count):
        now += rng.expovariate(per_s)
        times.append(now)
    return times


def turns(names: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """(round, name), each name once a round; every other round in reverse, so that drift favours none."""
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            yield number, name


def case_name(streams: int, rate: float) -> str:
    """The name of a case in tables."""
    return f"{rate:g} requests/s" if rate else f"{streams} stream{'s' * (streams > 1)}"

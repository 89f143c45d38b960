"""One of openvino_genai's pipelines as the guard sees it: the interface between scheduling and what computes tokens.

`genai.continuous.ContinuousPipeline`, `genai.stateful.StatefulPipeline` and the fake of the tests implement it, and
one test suite runs on all. A handle and its outputs have the names of openvino_genai's own objects, so that the hot
loop needs no wrapper. No openvino here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from .....engine.generation.backend import ImagePlaceholders, LoadedModel
from .....engine.generation.sequence import ImagePrompt
from .....types import SamplingParams

Status = Literal["running", "finished", "lost"]
"""lost: the pipeline dropped it for lack of KV blocks (GenAI's IGNORED). The only sign is at most an empty output."""


@dataclass(slots=True, kw_only=True)
class PipelineRequest:
    """One request to a pipeline, complete."""

    tokens: list[int]
    """The ids of the prompt, each below the size of the vocabulary."""
    sampling: SamplingParams
    """How tokens are sampled. Its n, max_tokens, min_tokens, seeds and stop_token_ids are not read."""
    max_tokens: int
    """The most tokens to generate."""
    min_tokens: int = 0
    """The number of first tokens among which no token that ends the text is generated."""
    seed: int = 0
    """The seed."""
    stops: frozenset[int] = frozenset()
    """Every id that ends the text."""
    echo: bool = False
    """Whether the first output starts with the prompt's ids and log probabilities."""
    constraint: str = ""
    """A structural tag that the generated tokens match from the first on; empty: there is none."""
    image_prompt: ImagePrompt | None = None
    """What a model with vision computes instead of the tokens."""


@dataclass(slots=True)
class GuardedOutput:
    """The result of one step for one sequence."""

    generated_ids: list[int]
    """The new ids."""
    generated_log_probs: list[float] = field(default_factory=list)
    """Their log probabilities, if these are wanted."""
    score: float = 0.0
    """The cumulative log probability; that of beams is divided by the length penalty."""
    audio: bytes = b""
    """New samples of the spoken answer: 16 bits, little-endian, mono."""


class Handle(Protocol):
    """One request inside a pipeline. Deleting the handle stops the request."""

    def can_read(self) -> bool:
        """Returns whether there is an output to read; it is always False after cancel."""

    def read(self) -> Mapping[int, GuardedOutput]:
        """Returns the outputs of one step: {0: ...}; any keys in a beam search; {} when the request is lost.

        Never call it when can_read is False: GenAI would block for ever or raise.
        """

    def cancel(self) -> None:
        """Stops; unread outputs are lost, the KV blocks are free at the next step."""


class ImageTokenCounter(ImagePlaceholders, Protocol):
    """Counts the tokens of images exactly, which is possible when a request is finished."""

    def prompt_tokens(self, handle: Handle) -> int:
        """Returns the exact number of prompt tokens of a finished request, 0 while it runs."""

    def learn(self, image_prompt: ImagePrompt, tokens: int) -> None:
        """Notes the exact number of tokens that a prompt had."""


class Pipeline(LoadedModel, Protocol):
    """Continuous batching. Not thread-safe; it has one user."""

    image_token_counter: ImageTokenCounter | None
    """None: a text model."""
    recoverable: bool
    """After an exception from `step`, cancelling all requests and stepping until idle repairs it."""
    step_tokens: int
    """Most tokens of one step, prefill and decode together."""

    def check(self, request: PipelineRequest) -> None:
        """Raises errors.BadRequest for what `add` would refuse. Changes nothing."""

    def add(self, request: PipelineRequest) -> Handle:
        """Adds a request to the next steps. Raises errors.BadRequest, without effect on others."""

    def step(self) -> None:
        """Computes once for every request that can be scheduled. Any exception leaves the pipeline poisoned."""

    def busy(self) -> bool:
        """Returns whether requests are unfinished, or cancelled and not yet freed by a step."""

    def scheduled(self) -> int:
        """Returns how many requests the last step computed for."""

    def status(self, handle: Handle) -> Status:
        """Returns the state of a request that has no output."""

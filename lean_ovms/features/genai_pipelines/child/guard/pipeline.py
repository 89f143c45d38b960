"""The interface between the guard and openvino_genai's pipelines.

`ContinuousPipeline`, `StatefulPipeline` and the fake of the tests implement it, and one test suite runs on all. The
members of a handle and its outputs have the names of openvino_genai's own objects, so that the hot loop needs no
wrapper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from .....engine.generation.backend import ImagePlaceholders, LoadedModel
from .....engine.generation.image_prompts import ImagePrompt
from .....types import SamplingParams

Status = Literal["running", "finished", "lost"]
"""lost: the pipeline dropped it for lack of KV blocks (GenAI's IGNORED). The only sign is at most an empty output."""


@dataclass(slots=True, kw_only=True)
class PipelineRequest:
    """A complete request to a pipeline."""

    tokens: list[int]
    """The ids of the prompt, each below the size of the vocabulary."""
    sampling: SamplingParams
    """The sampling parameters, of which n, max_tokens, min_tokens, seeds and stop_token_ids are ignored."""
    max_tokens: int
    """The most tokens to generate."""
    min_tokens: int = 0
    """The number of tokens before which the text must not end."""
    seed: int = 0
    """The seed of sampling."""
    stops: frozenset[int] = frozenset()
    """All token ids that end the text."""
    echo: bool = False
    """Whether the first output starts with the prompt's ids and log probabilities."""
    constraint: str = ""
    """The structural tag that the generated tokens must match; "" if there is none."""
    image_prompt: ImagePrompt | None = None
    """The prompt with images that a model with vision computes instead of the tokens."""


@dataclass(slots=True)
class GuardedOutput:
    """The result of one step for one sequence."""

    generated_ids: list[int]
    """The new ids."""
    generated_log_probs: list[float] = field(default_factory=list)
    """The log probabilities of these ids, if they are requested."""
    score: float = 0.0
    """The cumulative log probability, which in a beam search is divided by the length penalty."""
    audio: bytes = b""
    """New samples of the spoken answer, 16 bits, little-endian, mono."""


class Handle(Protocol):
    """One request inside a pipeline. Deleting the handle stops the request."""

    def can_read(self) -> bool:
        """Returns whether there is an output to read, which is never the case after `cancel`."""

    def read(self) -> Mapping[int, GuardedOutput]:
        """Returns the outputs of a step by the numbers of their texts, 0 without beam search; {} for a lost request.

        It must not be called if `can_read` is False, since GenAI would block for ever or raise an error.
        """

    def cancel(self) -> None:
        """Stops the request. Unread outputs are lost, and the KV blocks are freed by the next step."""


class ImageTokenCounter(ImagePlaceholders, Protocol):
    """Counts the tokens of images exactly, which is possible when a request is finished."""

    def prompt_tokens(self, handle: Handle) -> int:
        """Returns the exact number of prompt tokens of a finished request, 0 while it runs."""

    def learn(self, image_prompt: ImagePrompt, tokens: int) -> None:
        """Notes the exact number of tokens that a prompt had."""


class Pipeline(LoadedModel, Protocol):
    """A pipeline with continuous batching. It is not thread-safe and has one user."""

    image_token_counter: ImageTokenCounter | None
    """The counter of image tokens; None for a model without vision."""
    recoverable: bool
    """Whether cancelling all requests and stepping until it is idle repairs it after an exception from `step`."""
    step_tokens: int
    """The most tokens of one step, prefill and decode together."""

    def check(self, request: PipelineRequest) -> None:
        """Raises errors.BadRequest if `add` would refuse the request. It changes nothing."""

    def add(self, request: PipelineRequest) -> Handle:
        """Adds a request, which the next steps compute. Raises errors.BadRequest, without effect on other requests."""

    def step(self) -> None:
        """Computes one step for each request that can be scheduled. After any exception the pipeline is unusable."""

    def busy(self) -> bool:
        """Returns whether there are requests that are unfinished, or cancelled but not yet freed by a step."""

    def scheduled(self) -> int:
        """Returns the number of requests that the last step has computed."""

    def status(self, handle: Handle) -> Status:
        """Returns the state of a request that has no output."""

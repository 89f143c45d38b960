"""What the worker asks of a pipeline: the seam between our loop and whoever computes tokens.

`genai.continuous.ContinuousPipeline` and `fake_pipeline.FakePipeline` implement it, and one test suite runs on both.
A handle and its outputs have the names of openvino_genai's own objects, so that the hot loop needs no wrapper.
No openvino here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from ...types import Image, ModelInfo, SamplingParams, Vocabulary

ASSISTANT_TOKENS = 5
NGRAM_SIZE = 3
"""What OVMS takes in assisted pipelines when a request says nothing."""

Status = Literal["running", "finished", "lost"]
"""lost: the pipeline gave up on it for want of KV blocks (GenAI's IGNORED). At most an empty output tells."""


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A prompt for a pipeline that sees: text in which <ov_genai_image_0>, ... stand for the images."""

    text: str
    add_special_tokens: bool
    images: tuple[Image, ...] = ()


@dataclass(slots=True, kw_only=True)
class PipelineRequest:
    """One request to a pipeline, complete. sampling.n, max_tokens, min_tokens, seeds and stop_token_ids are not read.

    tokens: prompt ids in [0, vocab). done: how many of them, at the end, were generated before a preemption; the seed
    moves on by that, or a sampler would draw the same random numbers again. stops: every id that ends it.
    echo: the first output starts with the prompt's ids and log probabilities. constraint: a structural tag that the
    generated tokens match from the first on, or "". scene: what a pipeline that sees computes instead of tokens.
    """

    tokens: list[int]
    sampling: SamplingParams
    max_tokens: int
    min_tokens: int
    seed: int
    stops: frozenset[int]
    echo: bool = False
    done: int = 0
    constraint: str = ""
    scene: ImagePrompt | None = None


class Output(Protocol):
    """What one step made of one sequence. score: the cumulative log probability (beams: by length penalty)."""

    @property
    def generated_ids(self) -> list[int]: ...

    @property
    def generated_log_probs(self) -> list[float]: ...

    @property
    def score(self) -> float: ...


class Handle(Protocol):
    """One request inside a pipeline. Whoever lets go of a handle stops its request."""

    def can_read(self) -> bool:
        """There is an output to read; False for ever after cancel."""
        ...

    def read(self) -> Mapping[int, Output]:
        """The outputs of one step: {0: ...}; any keys in a beam search; {} when the request is lost.

        Never call it when can_read is False: GenAI would block for ever or raise.
        """
        ...

    def cancel(self) -> None:
        """Stop; what was not read is lost, the KV blocks are free at the next step."""
        ...


class Compiler(Protocol):
    """Compiles grammars for a pipeline, so that its steps need not."""

    def compile(self, tag: str) -> None:
        """Takes its time in C++, with the GIL released. Raises errors.BadRequest."""
        ...

    def forget(self) -> None:
        """Drop everything compiled. Between two steps only."""
        ...


class Helper(Protocol):
    """Finds out whether a grammar can be compiled, with no risk for this process. Blocks its caller."""

    def check(self, tag: str) -> tuple[float, int]:
        """(seconds, bytes) that it takes. Raises errors.RequestError."""
        ...

    def stop(self) -> object:
        """Give up what it holds; the next `check` starts it again."""
        ...


class ImageTokenCounter(Protocol):
    """What is particular to pipelines that see: they take text and images, never token ids."""

    def lay_out(self, scene: ImagePrompt) -> list[int]:
        """The prompt as ids, with as many negative ones for each image as it takes tokens, the same for the same image.

        Their number is exact for the image sizes that the pipeline has learned and an upper estimate for others.
        """
        ...

    def counted(self, handle: Handle) -> int:
        """The true number of prompt tokens of a request that is over, 0 if it is not."""
        ...

    def learn(self, scene: ImagePrompt, tokens: int) -> None:
        """So many tokens it was."""
        ...


class Grammars(NamedTuple):
    """What engine.grammar needs to let a request with a grammar through."""

    compiler: Compiler
    helper: Helper


class Pipeline(Protocol):
    """Continuous batching. Not thread-safe, and nobody else may use it."""

    info: ModelInfo
    vocabulary: Vocabulary
    grammars: Grammars | None
    """None: it cannot do structured output."""
    sight: ImageTokenCounter | None
    """None: it reads text only."""
    recoverable: bool
    """After an exception out of `step`, cancelling everything and stepping until idle makes it whole again."""
    step_tokens: int
    """Most tokens of one step, prompts and answers together."""

    def check(self, work: PipelineRequest) -> None:
        """Raises errors.BadRequest for what `add` would refuse. Changes nothing."""
        ...

    def add(self, work: PipelineRequest) -> Handle:
        """Take a request for the next steps. Raises errors.BadRequest, with no harm to others."""
        ...

    def step(self) -> None:
        """Compute once for every request that can be scheduled. Any exception leaves the pipeline poisoned."""
        ...

    def busy(self) -> bool:
        """Requests are unfinished, or cancelled and not yet cleared away by a step."""
        ...

    def scheduled(self) -> int:
        """How many requests the last step computed for."""
        ...

    def status(self, handle: Handle) -> Status:
        """What became of a request that is silent."""
        ...

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Text to ids. Raises errors.BadRequest for text that is not Unicode (lone surrogates)."""
        ...

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Ids to text, with the model's own detokenizer."""
        ...

"""What generation asks of a pipeline: the interface between scheduling and whatever computes tokens.

`genai.continuous.ContinuousPipeline`, `paged.pipeline.PagedPipeline` and `fake_pipeline.FakePipeline` implement it, and
one test suite runs on all three.
A handle and its outputs have the names of openvino_genai's own objects, so that the hot loop needs no wrapper.
No openvino here.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from ...engine_types import ModelInfo, Vocabulary
from ...types import Image, SamplingParams
from .grammar_limits import Bounds
from .guesses import GuessCounts

ASSISTANT_TOKENS = 5
NGRAM_SIZE = 3
"""OVMS's defaults for speculative pipelines."""

Status = Literal["running", "finished", "lost", "failed", "refused"]
"""lost: the pipeline dropped it for lack of KV blocks (GenAI's IGNORED). failed: this request alone cannot be computed.
refused: its parameters leave no token to choose; the `error` of its handle says so to the client.
The only sign of these is at most an empty output.
"""


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A prompt for a model with vision: text in which <ov_genai_image_0>, ... stand for the images."""

    text: str
    add_special_tokens: bool
    images: tuple[Image, ...] = ()


class Thinking(NamedTuple):
    """A limit of reasoning: after `budget` tokens inside it, the ids of `end` are forced.

    start: the ids that begin reasoning; opened: the prompt ends inside it.
    """

    budget: int
    start: tuple[int, ...]
    end: tuple[int, ...]
    opened: bool


@dataclass(slots=True, kw_only=True)
class PipelineRequest:
    """One request to a pipeline, complete. sampling.n, max_tokens, min_tokens, seeds and stop_token_ids are not read.

    tokens: prompt ids in [0, vocab). done: how many of them, at the end, were generated before a preemption; the seed
    is advanced by that, or a sampler would draw the same random numbers again. stops: every id that ends it.
    echo: the first output starts with the prompt's ids and log probabilities. constraint: a structural tag that the
    generated tokens match from the first on, or "". image_prompt: what a model with vision computes instead of tokens.
    bad_words: ids of each way to write a bad word. thinking: None: no limit. Both need the capability logit_edits.
    group: equal for the choices of one request, which begin with the same prompt; None for a single one.
    adapter: as in protocol.Submit; it needs the capability adapters.
    native: the pipeline's own form of the request, which `check` may leave here for `add`.
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
    image_prompt: ImagePrompt | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    thinking: Thinking | None = None
    group: int | None = None
    adapter: str = ""
    native: object = field(default=None, init=False, compare=False, repr=False)  # not copied by replace()


class Output(Protocol):
    """The result of one step for one sequence. score: the cumulative log probability (beams: by length penalty)."""

    @property
    def generated_ids(self) -> list[int]: ...

    @property
    def generated_log_probs(self) -> list[float]: ...

    @property
    def score(self) -> float: ...


class Details(Protocol):
    """Of one token, from the model's own logits: its rank (1: the likeliest) and [id, log probability] of others."""

    @property
    def logprob(self) -> float: ...

    @property
    def rank(self) -> int: ...

    @property
    def top(self) -> list[tuple[int, float]]: ...


class DetailedOutput(Output, Protocol):
    """The output of a pipeline with the capability "alternatives", for a request with alternatives or an echo.

    details: of each generated token. prompt_details: of each prompt token but the first, with the first output of a
    request with echo; of a beam search, with the best.
    """

    @property
    def details(self) -> Sequence[Details]: ...

    @property
    def prompt_details(self) -> Sequence[Details]: ...


class Handle(Protocol):
    """One request inside a pipeline. Deleting the handle stops the request."""

    def can_read(self) -> bool:
        """There is an output to read; always False after cancel."""
        ...

    def read(self) -> Mapping[int, Output]:
        """The outputs of one step: {0: ...}; any keys in a beam search; {} when the request is lost.

        Never call it when can_read is False: GenAI would block for ever or raise.
        """
        ...

    def cancel(self) -> None:
        """Stop; unread outputs are lost, the KV blocks are free at the next step."""
        ...


class CountingHandle(Handle, Protocol):
    """A handle of a pipeline with the capability "cached_tokens"."""

    @property
    def cached(self) -> int:
        """Prompt tokens that were found in the prefix cache, known with the first output."""
        ...


class ProgressHandle(CountingHandle, Protocol):
    """A handle of a pipeline with the capability "progress"."""

    @property
    def computed(self) -> int:
        """Prompt tokens that are in the KV cache, those of the prefix cache included."""
        ...


class RefusedHandle(Handle, Protocol):
    """A handle whose status is refused."""

    @property
    def error(self) -> str: ...


class Compiler(Protocol):
    """Compiles grammars for a pipeline in advance, outside its steps."""

    def compile(self, tag: str) -> None:
        """Takes its time in C++, with the GIL released. Raises errors.BadRequest."""
        ...

    def clear(self) -> None:
        """Drop everything compiled. Between two steps only."""
        ...


class GrammarCost(NamedTuple):
    """CPU seconds and bytes of compiling a grammar. Then, of each request: start_s of its first step, and mask_s of a
    later token (the slowest that was found). notices: what the library does not impose, for the client."""

    seconds: float
    bytes: int
    start_s: float = 0.0
    mask_s: float = 0.0
    notices: tuple[str, ...] = ()


class GrammarChecker(Protocol):
    """Finds out whether a grammar can be compiled and how fast it is, with no risk for this process. Blocks its caller
    and takes no time of other threads."""

    def check(self, tag: str, bounds: Bounds) -> GrammarCost:
        """What it costs. Raises errors.RequestError for one that is invalid, beyond the bounds, or too slow."""
        ...

    def stop(self) -> object:
        """Free its resources; the next `check` starts it again."""
        ...


class ImageTokenCounter(Protocol):
    """The part of a pipeline that only models with vision have: they take text and images, never token ids."""

    def placeholder_ids(self, image_prompt: ImagePrompt) -> list[int]:
        """The prompt as ids, with one negative id per token of each image, the same id for the same image.

        Their number is exact for image sizes that were learned, and an upper estimate for others.
        """
        ...

    def prompt_tokens(self, handle: Handle) -> int:
        """The exact number of prompt tokens of a finished request, 0 while it runs."""
        ...

    def learn(self, image_prompt: ImagePrompt, tokens: int) -> None:
        """The prompt had this exact number of tokens."""
        ...


class BesideEncoder(Protocol):
    """The part of a pipeline that tokenizes long texts in a thread, without the interpreter's lock."""

    def is_long(self, text: str) -> bool:
        """Whether `Pipeline.encode` would take too long between two steps."""
        ...

    def encode(self, text: str, add_special_tokens: bool) -> array[int]:
        """As `Pipeline.encode`. Called in one other thread. An array: millions of ids are an array of some MB."""
        ...

    def learn(self, text: str, ids: list[int], add_special_tokens: bool) -> None:
        """What `encode` returned, so that the next turn of a conversation is short."""
        ...


class Grammars(NamedTuple):
    """What grammar_queue needs to let a request with a grammar run."""

    compiler: Compiler
    checker: GrammarChecker


class Pipeline(Protocol):
    """Continuous batching. Not thread-safe; it has one user."""

    info: ModelInfo
    vocabulary: Vocabulary
    grammars: Grammars | None
    """None: no structured output."""
    image_token_counter: ImageTokenCounter | None
    """None: a text model."""
    beside: BesideEncoder | None
    """None: every text is tokenized between two steps."""
    recoverable: bool
    """After an exception from `step`, cancelling all requests and stepping until idle repairs it."""
    step_tokens: int
    """Most tokens of one step, prefill and decode together."""
    shares_steps: bool
    """A long prompt leaves half of each step to short ones. False: prompts are computed in the order of `add`."""
    cancels_prefill: bool
    """A request can be cancelled while its prompt is half computed, and the prefix cache stays right."""
    guesses: GuessCounts | None
    """Of speculative decoding. None: each output after the first is taken for a draft and the model's own token."""

    def check(self, request: PipelineRequest) -> None:
        """Raises errors.BadRequest for what `add` would refuse. Changes nothing."""
        ...

    def add(self, request: PipelineRequest) -> Handle:
        """Add a request to the next steps. Raises errors.BadRequest, without effect on others."""
        ...

    def start(self) -> bool:
        """Begin the step that `step` will wait for, so that outputs are read and requests added meanwhile.

        False: there is nothing to compute, or the pipeline cannot do this. Raises as `step` does.
        """
        ...

    def step(self) -> None:
        """Compute once for every request that can be scheduled. Any exception leaves the pipeline poisoned."""
        ...

    def busy(self) -> bool:
        """Requests are unfinished, or cancelled and not yet freed by a step."""
        ...

    def scheduled(self) -> int:
        """How many requests the last step computed for."""
        ...

    def status(self, handle: Handle) -> Status:
        """The state of a request that has no output."""
        ...

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Text to ids. Raises errors.BadRequest for text that is not Unicode (lone surrogates)."""
        ...

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Ids to text, with the model's own detokenizer."""
        ...

"""Declares the interface between the task and an engine with its scheduler, which generates tokens for requests.

A LoadedModel is what requests are checked and tokenized with, a Backend is one that generates, too.
`paged.pipeline.PagedPipeline` implements it; features may have others (manifest.BackendRow), and one without a model.
No openvino here.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ...types.engine import EngineStats, ModelInfo, Vocabulary
from ..protocol import Record, Submit
from .fair_queue import FairQueue
from .sequence import GenerationRequest, ImagePrompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...config import EngineConfig
    from ...errors import RequestError

ASSISTANT_TOKENS = 5
NGRAM_SIZE = 3
"""OVMS's defaults for speculative decoding."""
HEAD_TOKENS = 3
"""The same for a head of the model, which was trained to know one token or a few."""
POSITIONS = 20
"""Places of a draft that are counted one by one: requests choose how long drafts are, and each is a series."""


@dataclass(slots=True)
class SpecDecodeStats:
    """Counts of draft tokens: those of a draft model, of prompt lookup, or of a pipeline that has either inside."""

    drafts: int = 0
    """The verified drafts of at least one token."""
    drafted: int | None = None
    """The tokens of these; None: not known."""
    accepted: int = 0
    """Those of them that were kept."""
    by_position: list[int] = field(default_factory=list)
    """The kept ones by their place in the draft, for the first POSITIONS places."""

    def begin(self, tokens: int) -> None:
        """Counts a draft of so many tokens, which is verified."""
        self.drafts += 1
        self.drafted = (self.drafted or 0) + tokens

    def accept(self, position: int) -> None:
        """Counts the token at this place of a draft, which is kept."""
        self.accepted += 1
        if position < POSITIONS:
            self.by_position += [0] * (position + 1 - len(self.by_position))
            self.by_position[position] += 1

    def stats(self) -> dict[str, Any]:
        """Returns the fields of types.engine.EngineStats that are about draft tokens."""
        return {
            "drafts": self.drafts,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "accepted_by_position": list(self.by_position),
        }


class WaitingRequests(Protocol):
    """Requests that were added and are not in the queue yet: their images are encoded first."""

    @property
    def waiting(self) -> int:
        """Requests of all clients."""

    def waiting_of(self, client: str) -> int: ...


class ConstraintQueue(WaitingRequests, Protocol):
    """Requests that wait until their grammar can be matched. No method blocks; the loop's thread calls all of them."""

    @property
    def compiling(self) -> bool:
        """Whether a thread compiles: no request with a grammar may have its first step, not even one that was
        preempted."""

    def add(self, submit: Submit, request: GenerationRequest) -> bool:
        """Returns whether a request may run now; else it waits until `poll` returns it. Raises errors.RequestError."""

    def cancel(self, request_id: int, index: int | None) -> None:
        """Drops a request that its client cancelled, or one choice of it. Ids that are not in the queue are ignored."""

    def poll(self, may_compile: bool) -> Iterable[tuple[Submit, GenerationRequest, RequestError | None]]:
        """Returns the requests that no longer wait, each with why it is refused, or None.

        Args:
            may_compile: Whether a grammar may be compiled now: no request with one is about to have its first step.
        """


class Grammars(Protocol):
    """The grammars that the texts of a model can be held to. To the core, a grammar is a text without a meaning."""

    def new_queue(self, wake: Callable[[], None], config: EngineConfig) -> ConstraintQueue:
        """Returns the queue of requests with a grammar.

        Args:
            wake: Ends the wait of the engine's loop; it is called from threads.
            config: The options of the engine.

        Raises:
            errors.GrammarInvalid: There are none.
        """


class ImagePlaceholders(Protocol):
    """The part that only models with vision have."""

    takes_ids: bool
    """Whether prompts without images may be token ids."""

    def parse(self, submit: Submit, context: int, max_characters: int) -> ImagePrompt:
        """Returns the text and the images of a prompt, checked.

        Args:
            submit: The command with the prompt.
            context: The tokens of the model's context, for the error.
            max_characters: The most characters of the text.

        Raises:
            errors.BadRequest: the prompt is not valid.
        """

    def placeholder_ids(self, image_prompt: ImagePrompt) -> list[int]:
        """Returns the prompt as ids, with one negative id per token of each image, the same id for the same image.

        Their number is exact for image sizes that were learned, and an upper estimate for others.
        """


class LongTextEncoder(Protocol):
    """Tokenizes long texts in a thread, without the interpreter's lock."""

    def is_long(self, text: str) -> bool:
        """Returns whether `LoadedModel.encode` would take too long between two steps."""

    def encode(self, text: str, add_special_tokens: bool) -> array[int]:
        """Encodes as `LoadedModel.encode` does, in one other thread, to an array: millions of ids take some MB."""

    def learn(self, text: str, ids: list[int], add_special_tokens: bool) -> None:
        """Remembers what `encode` returned, so that the next turn of a conversation is short."""


class LoadedModel(Protocol):
    """The parts of a loaded model that requests are checked and tokenized with."""

    info: ModelInfo
    vocabulary: Vocabulary
    grammars: Grammars
    """The grammars that texts can be held to."""
    long_text_encoder: LongTextEncoder | None
    """None: every text is tokenized between two steps."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Returns the ids of a text. Raises errors.BadRequest for text that is not Unicode (lone surrogates)."""

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of ids, by the model's own detokenizer."""


class Backend(LoadedModel, Protocol):
    """One loaded model. Not thread-safe; it has one user."""

    image_placeholders: ImagePlaceholders | None
    """None: a text model."""
    image_queue: WaitingRequests | None
    """None: no request waits for images."""
    out: list[Record]
    """The records for the front end; the list is the same for ever."""
    requests: dict[int, GenerationRequest]
    """The requests that are not finished, by their numbers."""

    @property
    def waiting(self) -> FairQueue[Any]:
        """Sequences that have not started, or will start again."""

    @property
    def idle(self) -> bool:
        """There is nothing to step for."""

    @property
    def may_compile(self) -> bool:
        """A grammar may be compiled in a thread: no sequence is about to have its first step with one."""

    def check(self, request: GenerationRequest) -> None:
        """Raises errors.BadRequest for what this engine cannot compute. It may keep its own form of the request."""

    def add(self, request: GenerationRequest) -> None:
        """Queues a request that was checked."""

    def cancel(self, request_id: int, index: int | None) -> None:
        """Stops a request or one choice of it; an unknown id is one that has finished."""

    def admit(self, *, compiling: bool = False) -> None:
        """Starts waiting sequences as far as there is room.

        Args:
            compiling: Whether a thread compiles a grammar at present.
        """

    def step(self) -> None:
        """Computes once for every sequence that can be scheduled; results go to `out`. Raises errors.EngineLost."""

    def handle(self, command: Record) -> None:
        """Handles a command that is about no request: to forget what is cached of prompts, or one of a feature.

        The answer goes to `out`, some time for a feature's. Raises RequestError, NotSupported with the command's own
        text where nothing handles it.
        """

    def close(self) -> None:
        """Keeps what is to outlive the process."""

    def stats(self) -> EngineStats:
        """Returns a snapshot of all counts."""

"""The interface between the text generation task and an engine that generates tokens for requests.

A LoadedModel is used to check and tokenize requests; a Backend also generates. `paged.engine.PagedPipeline` is the
core's Backend; features may supply others (manifest.BackendRow), and one works without a model. Independent of
openvino.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ...types.engine import EngineStats, ModelInfo, Vocabulary
from ..protocol import Record, Submit
from .fair_queue import FairQueue, GenerationRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...config import EngineConfig
    from ...errors import RequestError
    from .image_prompts import ImagePrompt

ASSISTANT_TOKENS = 5
NGRAM_SIZE = 3
"""The defaults of num_assistant_tokens and max_ngram_size in speculative decoding, as in OVMS."""
HEAD_TOKENS = 3
"""The default of num_assistant_tokens for a model's draft head, which is trained to predict one token or a few."""
POSITIONS = 20
"""The number of positions in a draft that are counted, since each one is a time series of the metrics."""


@dataclass(slots=True)
class SpecDecodeStats:
    """Counts of draft tokens, whether a draft model, prompt lookup or the pipeline itself makes them."""

    drafts: int = 0
    """The number of verified drafts with at least one token."""
    drafted: int | None = None
    """The number of draft tokens; None if unknown."""
    accepted: int = 0
    """The number of accepted draft tokens."""
    by_position: list[int] = field(default_factory=list)
    """The number of accepted tokens by their position in the draft, for the first POSITIONS positions."""

    def begin(self, tokens: int) -> None:
        """Counts a draft with this number of tokens that is about to be verified."""
        self.drafts += 1
        self.drafted = (self.drafted or 0) + tokens

    def accept(self, position: int) -> None:
        """Counts the acceptance of the token at this position of a draft."""
        self.accepted += 1
        if position < POSITIONS:
            self.by_position += [0] * (position + 1 - len(self.by_position))
            self.by_position[position] += 1

    def stats(self) -> dict[str, Any]:
        """Returns the fields of types.engine.EngineStats for draft tokens."""
        return {
            "drafts": self.drafts,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "accepted_by_position": list(self.by_position),
        }


class WaitingRequests(Protocol):
    """Accepted requests that are not in the queue yet, since their images must be encoded first."""

    @property
    def waiting(self) -> int:
        """The number of these requests."""

    def waiting_of(self, client: str) -> int: ...


class ConstraintQueue(WaitingRequests, Protocol):
    """Requests that wait until their grammar is compiled. No method blocks; the loop's thread calls all."""

    @property
    def compiling(self) -> bool:
        """Whether a grammar is being compiled, so that no sequence with a grammar may have its first step."""

    def add(self, submit: Submit, request: GenerationRequest) -> bool:
        """Returns whether a request may run now. If not, `poll` will return it later. Raises errors.RequestError."""

    def cancel(self, request_id: int) -> None:
        """Drops a request that its client cancelled. Unknown ids are ignored."""

    def poll(self, may_compile: bool) -> Iterable[tuple[Submit, GenerationRequest, RequestError | None]]:
        """Returns the requests that no longer wait, each with an error if its grammar was refused, or None.

        It begins to compile a grammar only if `may_compile`: no sequence with a grammar is about to have its first
        step.
        """


class Grammars(Protocol):
    """Compiles the grammars that constrain a model's output. To the core, a grammar is an opaque text."""

    def new_queue(self, wake: Callable[[], None], config: EngineConfig) -> ConstraintQueue:
        """Creates the queue of requests that wait for their grammar. Raises errors.GrammarInvalid.

        Its threads call `wake` for the engine's loop.
        """


class ImagePlaceholders(Protocol):
    """Handles the images of prompts; only models with vision have one."""

    takes_ids: bool
    """Whether a prompt without images may be token ids."""

    def parse(self, submit: Submit, context: int, max_characters: int) -> ImagePrompt:
        """Checks the text and the images of a prompt, and returns them.

        Args:
            submit: The command with the prompt.
            context: The model's context length in tokens, for the error.
            max_characters: The most characters of the text.

        Raises:
            errors.BadRequest: The prompt is not valid.
        """

    def placeholder_ids(self, image_prompt: ImagePrompt) -> list[int]:
        """Returns the prompt as ids, with a negative id, the same for equal images, for each token of an image.

        The number of these ids is exact for image sizes that were seen before, and an upper estimate for others.
        """


class LongTextEncoder(Protocol):
    """Tokenizes long texts in a thread, without holding the interpreter lock."""

    def is_long(self, text: str) -> bool:
        """Returns whether `LoadedModel.encode` would take too long between two steps."""

    def encode(self, text: str, add_special_tokens: bool) -> array[int]:
        """Returns the same ids as `LoadedModel.encode`, as an array, which takes less memory; called in one thread."""

    def learn(self, text: str, ids: list[int], add_special_tokens: bool) -> None:
        """Caches the result of `encode`, so that the next turn of a conversation has little to tokenize."""


class LoadedModel(Protocol):
    """The part of a loaded model that is used to check and tokenize requests."""

    info: ModelInfo
    vocabulary: Vocabulary
    grammars: Grammars
    """The compiler of the grammars that constrain the model's output."""
    long_text_encoder: LongTextEncoder | None
    """Tokenizes long texts; None if all texts are tokenized between two steps."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Returns the token ids of a text. Raises errors.BadRequest for a text with unpaired surrogates."""

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of token ids from the model's own detokenizer."""


class Backend(LoadedModel, Protocol):
    """A loaded model that generates text. It is used from one thread."""

    image_placeholders: ImagePlaceholders | None
    """Handles images in prompts; None for a model that reads text only."""
    image_queue: WaitingRequests | None
    """The requests whose images are being encoded; None if no request waits for images."""
    out: list[Record]
    """The records for the front end. It is always the same list object."""
    requests: dict[int, GenerationRequest]
    """The unfinished requests by id."""
    wake: Callable[[], None] | None
    """Wakes up the engine's loop; None if `step` waits for every step."""

    @property
    def started(self) -> bool:
        """Whether a step was started whose results are not processed yet."""

    @property
    def computing(self) -> bool:
        """Whether the started step is still computed. `step` would wait for its end; a thread calls `wake` then."""

    @property
    def waiting(self) -> FairQueue[Any]:
        """The queue of sequences that have not started, or that were preempted."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""

    @property
    def may_compile(self) -> bool:
        """Whether a thread may compile a grammar, as no sequence with a grammar is about to have its first step."""

    def check(self, request: GenerationRequest) -> None:
        """Raises BadRequest if this engine cannot compute a request. It may set `request.native` for `add`."""

    def add(self, request: GenerationRequest) -> None:
        """Queues a request that `check` has accepted."""

    def cancel(self, request_id: int, index: int | None) -> None:
        """Stops a request, or one choice of it. Unknown ids, of requests that have finished, are ignored."""

    def admit(self, *, compiling: bool = False) -> None:
        """Starts waiting sequences as far as there is room; `compiling` says that a thread compiles a grammar."""

    def step(self) -> None:
        """Computes one step for all sequences that fit, and adds the results to `out`. Raises errors.EngineLost."""

    def handle(self, command: Record) -> None:
        """Handles a command that belongs to no request: to clear the prefix cache, or a command of a feature.

        The answer is added to `out`, possibly later for a command of a feature. Raises RequestError; raises
        NotSupported with the command's own message if nothing handles it.
        """

    def close(self) -> None:
        """Saves what should survive the process, such as cached blocks."""

    def stats(self) -> EngineStats:
        """Returns the engine's current statistics."""

"""The interfaces of the parts of a paged engine, which `assemble` chooses by the model and the options.

The engine knows what a part does, but not which implementation it is. The module also declares the engine's sizes, and
StepHook, with which a feature acts before, after and between steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ...errors import BadRequest, GrammarInvalid, RequestError
from ..generation.backend import ConstraintQueue, Grammars, ImagePlaceholders, WaitingRequests
from ..protocol import Record
from .network import AdapterProvider, NetworkEdit, PromptEmbeddings

if TYPE_CHECKING:
    from pathlib import Path

    from ...config import EngineConfig
    from ...types.engine import Vocabulary
    from ..generation.fair_queue import GenerationRequest
    from ..loading.settings import PipelineSettings
    from .block_manager import BlockManager, BlockTables, Parent
    from .model import PagedModel
    from .model_inputs import Chunk
    from .sequence import Matcher, SamplerChain, SearchFactory, Sequence
    from .state_checkpoints import StateCache

CAPABILITIES = ("alternatives", "beam_control", "cache_salt", "cached_tokens", "logit_edits", "progress")
"""The capabilities (ModelInfo.capabilities) of every paged engine, whatever its model."""
MAX_ROWS = 1024
"""The most sequences that run at once, even if a step has more tokens, such as an unsplit prompt's."""
TILE = 16
"""Steps with chunks of a small network are padded to a multiple of this number of tokens, since 16 tokens take as long
as 1. For a larger network, padding costs more than it saves."""
INTERVAL = 2048
"""The default number of prompt tokens between two checkpoints of a hybrid network's states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSizes:
    """The sizes of an engine's caches and steps."""

    blocks: int
    """The number of blocks of the KV cache."""
    block_size: int
    """The number of tokens in a block."""
    context: int
    """The most tokens of a sequence."""
    step_tokens: int
    """The most tokens in a step, however long it takes."""
    most_step_tokens: int = 0
    """The most tokens in a step that is short (ChunkSizes); 0 for no more than `step_tokens`."""
    threads: int = 1
    """The number of threads that compute the network: a step's CPU time divided by this is its duration."""
    max_sequences: int
    """The most sequences of one request, such as the beams of a beam search."""
    max_running: int = MAX_ROWS
    """The most sequences that run at once; a beam search counts as one."""
    states: int = 0
    """The number of slots for states of a hybrid network; 0 for as many as can be used."""
    interval: int = INTERVAL
    """The number of prompt tokens between two checkpoints of a hybrid network's states in the prefix cache."""
    split: bool = True
    """Whether a prompt may be computed over several steps."""
    caching: bool = True
    """Whether the prefix cache is used, so that requests share cached blocks."""
    priority_across_clients: bool = False
    """Whether priorities are compared across clients."""
    overlapping: bool = False
    """Whether the results of a step are sent while the next one is computed."""
    pad_to: int = 1
    """The multiple to which steps with chunks are padded, at most `block_size`; 1 for hybrids, without a row for it."""


Prepare = Callable[["Seq[Matcher]"], None]
"""A function that computes the token masks of a step's matchers."""


def one_by_one(matchers: Seq[Matcher]) -> None:
    """Computes the token masks of these matchers one after the other."""
    for matcher in matchers:
        matcher.prepare()


class PagedGrammars(Grammars, Protocol):
    """The compiled grammars with which the engine constrains texts."""

    def matcher(self, sequence: Sequence) -> Matcher:
        """Returns a matcher in the initial state of the sequence's grammar. Raises BadRequest."""

    def prepare(self, matchers: Seq[Matcher]) -> None:
        """Computes the token masks of matchers while the network computes."""


class NoGrammars:
    """The PagedGrammars of a server without grammars, or of a vocabulary with which no grammar works."""

    def new_queue(self, wake: Callable[[], None], config: EngineConfig) -> ConstraintQueue:
        """Raises an error, since no grammar is supported."""
        raise GrammarInvalid("structured output is not supported by this model")

    def matcher(self, sequence: Sequence) -> Matcher:
        """Raises BadRequest, since no grammar is supported."""
        raise BadRequest("structured output is not supported by this model")

    def prepare(self, matchers: Seq[Matcher]) -> None:
        """Does nothing, since there are no matchers."""


class GrammarSource(Protocol):
    """Creates the grammars of a model as the options say."""

    @property
    def missing(self) -> str:
        """What the options need that this engine does not support, as a part of a sentence; "" for nothing."""

    @property
    def install(self) -> str:
        """The command that installs a missing library, as a sentence; "" if nothing is missing."""

    def load(self) -> Callable[[Vocabulary, int, Seq[int]], PagedGrammars]:
        """Imports the libraries that the options need; returns a function that makes the grammars. Raises StartError.

        The function takes a vocabulary, the width of the logits, and the stop tokens.
        """


class InputEmbeddings(ImagePlaceholders, Protocol):
    """Creates embeddings of images and the like, which replace those of placeholder tokens in a prompt."""

    @property
    def reads_videos(self) -> bool:
        """Whether prompts may contain videos."""

    @property
    def tokens(self) -> list[str]:
        """The texts of the placeholder tokens, which clients must not write."""

    @property
    def queue(self) -> EncodingQueue:
        """The requests whose images are being encoded."""

    def of_prompt(self, ids: list[int]) -> PromptEmbeddings:
        """Returns the images and other content of a prompt with these ids, made by `placeholder_ids`."""

    def encode(self, request: GenerationRequest) -> None:
        """Has a checked request's missing images encoded; `queue` releases the request after that."""


class ReleasedRequest(NamedTuple):
    """A request that no longer waits for its images."""

    request: GenerationRequest
    """The request."""
    tokens: int
    """The number of image tokens that were encoded for it."""
    error: RequestError | None
    """The reason why it cannot run; None if it can."""


class EncodingQueue(WaitingRequests, Protocol):
    """The requests that wait until their images are encoded."""

    def cancel(self, number: int) -> bool:
        """Removes a request; returns whether it was in the queue."""

    def poll(self) -> Iterable[ReleasedRequest]:
        """Returns the requests whose images have been encoded or cannot be."""


class DraftSource(Protocol):
    """Drafts tokens for the sequences of an engine, by a network or from their own texts.

    `step_runner` verifies a draft token when the model's own logits are known: it is accepted if it is the token that
    would have been sampled anyway, so completions are the same with and without drafts.
    """

    asks_network: bool
    """Whether sequences get draft tokens from a network, by `propose`."""

    def copy(self, sequences: list[Sequence], decoding: int, *, few: bool, room: Callable[[Sequence], int]) -> None:
        """Sets draft tokens from the texts of those sequences that have none yet.

        Args:
            sequences: The sequences.
            decoding: The number of all decoding sequences.
            few: Whether the decoding sequences are so few that a wrong draft token costs little.
            room: Returns how many draft tokens a sequence may have.
        """

    def most(self, decoding: int) -> int:
        """Returns the most draft tokens of each decoding sequence in the next step, if all of them have some."""

    def propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        """Sets at most this number of the network's draft tokens of each sequence; any may be wrong. Raises nothing."""

    def computed(self, decoding: int, chunks: list[Chunk]) -> None:
        """Takes what it needs from a computed step: `decoding` tokens of decoding sequences, then the chunks."""

    def learn(self, sequences: int, drafted: int, accepted: int, seconds: float) -> None:
        """Takes the measurement of a step without prompts.

        Args:
            sequences: The number of decoding sequences.
            drafted: The number of draft tokens.
            accepted: The number of accepted draft tokens.
            seconds: The duration of the step, including drafting.
        """

    def forget(self) -> None:
        """Discards the measurements."""

    def leave(self, sequence: Sequence) -> None:
        """Frees what is kept for a sequence that has ended or was preempted."""


DraftSourceFactory = Callable[["BlockManager", "BlockTables"], DraftSource]
"""A function that creates the source of drafts from an engine's KV blocks and block tables."""


class DraftPlan(Protocol):
    """Makes draft tokens, and loads their network together with the model's."""

    kind: str
    """The kind of drafting: "draft", "mtp", "eagle3", "prompt_lookup", or "" for none."""
    trees: bool
    """Whether draft tokens may have alternatives."""
    ngrams: bool
    """Whether requests get draft tokens by prompt lookup without asking for it."""
    edits: Seq[NetworkEdit]
    """The changes to the model's network that a draft head needs."""

    def load(self, main: PagedModel, file: Path) -> int:
        """Loads the drafts' network for the main model; returns the bytes it adds to each block. Raises NotPageable."""

    def source_factory(self, main: PagedModel, sizes: EngineSizes, prepare: Prepare) -> DraftSourceFactory | None:
        """Returns a function that creates an engine's source of drafts; None if no network drafts tokens.

        Args:
            main: The main model.
            sizes: The sizes of the engine.
            prepare: Computes the token masks of grammars.
        """


class NoDrafts:
    """The DraftPlan of a model without draft tokens."""

    kind = ""
    trees = ngrams = False
    edits: Seq[NetworkEdit] = ()

    def load(self, main: PagedModel, file: Path) -> int:
        """Loads nothing, and returns 0."""
        return 0

    def source_factory(self, main: PagedModel, sizes: EngineSizes, prepare: Prepare) -> DraftSourceFactory | None:
        """Returns None, since there are no drafts."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """The parts of an engine that depend on the model's kind and on the options."""

    grammars: PagedGrammars = field(default_factory=NoGrammars)
    """The grammars that can constrain texts."""
    new_draft_source: DraftSourceFactory | None = None
    """Creates the source of draft tokens; None if only grammars draft."""
    new_search: SearchFactory | None = None
    """Creates the beam searches; None if requests cannot have any."""
    new_sampler_chain: Callable[[Sequence], SamplerChain] | None = None
    """Creates the sampler chains; None if requests cannot have any."""
    adapters: AdapterProvider = field(default_factory=AdapterProvider)
    """The adapters that requests can name."""
    clock: Callable[[], float] = time.process_time
    """The clock for the cost of steps: CPU time, which other processes do not prolong."""


class StepHook:
    """The hooks with which a feature extends an engine, whose thread calls them. By default each does nothing."""

    @property
    def working(self) -> bool:
        """Whether the engine must go on calling `poll` even if it has nothing to compute."""
        return False

    def added(self, sequence: Sequence) -> None:
        """Is called with the first sequence of a request that has been queued."""

    def poll(self) -> Iterable[Record]:
        """Processes results of other threads, before sequences are started. Returns records for the front end."""
        return ()

    def must_wait(self, sequence: Sequence, root: Parent | None) -> bool:
        """Returns whether a sequence that could start must wait, so that others may overtake it.

        `root` is the parent of its first block in the prefix cache; None if it does not use the prefix cache.
        """
        return False

    def give_back(self) -> None:
        """Frees the KV blocks that the feature holds, since a running sequence lacks some."""

    def begin_step(self) -> None:
        """Is called before a step is scheduled and computed."""

    def end_step(self, tokens: int) -> None:
        """Is called after a step with chunks of prompts, whose sequences have this number of tokens in total."""

    def changed(self) -> None:
        """Is called after a step or a command that may have changed the prefix cache."""

    def rest(self) -> None:
        """Is called repeatedly while no sequence runs; it may block for a few milliseconds."""

    def handle(self, command: Record) -> bool:
        """Handles a command if it is the feature's; returns whether it was. Raises RequestError."""
        return False

    def stats(self) -> dict[str, float]:
        """Returns the values of the feature's metrics by name."""
        return {}

    def close(self) -> None:
        """Saves what should survive the process, and ends threads."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """The parts of a loaded engine, which are passed to a feature's `install`. Two engines' parts are never equal."""

    config: EngineConfig
    """The options of the model."""
    settings: PipelineSettings
    """The settings that the options resolve to for this model and machine."""
    network: PagedModel
    """The network, with the memory of its caches."""
    blocks: BlockManager
    """The blocks of the KV cache. A feature may add a watcher."""
    states: StateCache
    """The states of a hybrid network."""
    hooks: list[StepHook]
    """The features' hooks around steps. A feature adds its own."""
    out: list[Record]
    """The list to which records for the front end are appended."""
    versions: dict[str, str]
    """The versions of the libraries used for computing, by name."""
    adapter_name: Callable[[str], str]
    """Returns the name of an adapter, given its key."""

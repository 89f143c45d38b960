"""Declares the parts of a paged engine: its sizes, the parts that `assemble` chooses for a model and its options, and
hooks.

Each Protocol here is a seam: the engine knows what a part does, not which one it is. A StepHook is what a feature does
around its steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ...errors import BadRequest, GrammarInvalid, RequestError
from ..generation.backend import ConstraintQueue, Grammars, ImagePlaceholders, WaitingRequests
from ..record import Record
from .network import AdapterProvider, NetworkEdit, PromptEmbeddings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ...config import EngineConfig
    from ...types.engine import Vocabulary
    from ..generation.sequence import GenerationRequest
    from ..loading.settings import PipelineSettings
    from .block_manager import BlockManager, BlockTables, Parent
    from .model import PagedModel
    from .model_inputs import Chunk
    from .sequence import Matcher, SearchFactory, Sequence, TextProposer
    from .state_checkpoints import StateCache

CAPABILITIES = ("alternatives", "beam_control", "cache_salt", "cached_tokens", "logit_edits", "progress")
"""What ModelInfo.capabilities says of every paged engine, whatever its model."""
MAX_ROWS = 1024
"""Sequences at once, however many tokens a step may have (as many as the context, when prompts are not split)."""
TILE = 16
"""Tokens of which a small network's steps with chunks get a multiple; its steps take as long with 16 tokens as with 1.
For a larger network, padding costs more than it saves."""
INTERVAL = 2048
"""Tokens of a prompt between two states of a hybrid network that the prefix cache keeps, where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSizes:
    """The sizes of what an engine keeps and computes at once, and of what fills its steps."""

    blocks: int
    """The number of blocks of the KV cache."""
    block_size: int
    """The tokens of a block."""
    context: int
    """The most tokens of a sequence."""
    step_tokens: int
    """The most tokens that a step computes, whatever it takes."""
    most_step_tokens: int = 0
    """The most tokens of a step that does not take long (ChunkSizes); 0: no more than `step_tokens`."""
    threads: int = 1
    """The threads that compute the network: a step takes so many times fewer seconds than CPU seconds."""
    max_sequences: int
    """The most sequences of one request, such as the beams of a search."""
    max_running: int = MAX_ROWS
    """The most sequences that run at once."""
    states: int = 0
    """How many states of a hybrid network there is memory for; 0: as many as could be used."""
    interval: int = INTERVAL
    """The tokens of a prompt between two states of a hybrid network that the prefix cache keeps."""
    split: bool = True
    """Whether a prompt may be computed over several steps."""
    caching: bool = True
    """Whether prompts may begin with the blocks of others."""
    priority_across_clients: bool = False
    """Whether a request's priority counts against those of other clients, too."""
    overlapping: bool = False
    """Whether the results of a step are sent while the next one is computed."""
    pad_to: int = 1
    """Steps with parts of prompts get a multiple of so many tokens: at most `block_size`, and 1 for a hybrid network,
    which has no row for padding."""


Prepare = Callable[["Seq[Matcher]"], None]
"""Computes the masks of a step."""


def one_by_one(matchers: Seq[Matcher]) -> None:
    """Computes the masks of these matchers, one after the other."""
    for matcher in matchers:
        matcher.prepare()


class PagedGrammars(Grammars, Protocol):
    """Grammars that the engine matches texts with."""

    def matcher(self, sequence: Sequence) -> Matcher:
        """Returns a matcher at the beginning of the sequence's grammar. Raises BadRequest."""

    def prepare(self, matchers: Seq[Matcher]) -> None:
        """Computes the masks of matchers that `matcher` has made, while the network computes."""


class NoGrammars:
    """The PagedGrammars of a server without any, or of a vocabulary that none can be matched with."""

    def new_queue(self, wake: Callable[[], None], config: EngineConfig) -> ConstraintQueue:
        """Refuses the first request with a grammar, and each further one."""
        raise GrammarInvalid("Structured output is not possible with this model")

    def matcher(self, sequence: Sequence) -> Matcher:
        """Refuses the grammar of a sequence. Raises BadRequest."""
        raise BadRequest("structured output is not possible with this model")

    def prepare(self, matchers: Seq[Matcher]) -> None:
        """Has nothing to compute."""


class GrammarSource(Protocol):
    """The source of the grammars of a model, by its options."""

    @property
    def missing(self) -> str:
        """What of the options this engine cannot do, as a part of a sentence; empty: nothing."""

    @property
    def install(self) -> str:
        """The command that installs what is missing, as a sentence; empty: there is none."""

    def load(self) -> Callable[[Vocabulary, int, Seq[int]], PagedGrammars]:
        """Imports what the options want. Raises StartError.

        Returns what makes the grammars, of a vocabulary, the width of logits and the tokens that end a text.
        """


class InputEmbeddings(ImagePlaceholders, Protocol):
    """Makes embeddings of what a prompt has beside text, which stand in the places of tokens."""

    @property
    def reads_videos(self) -> bool:
        """Whether a prompt may have videos."""

    @property
    def tokens(self) -> list[str]:
        """The texts of tokens that stand for what is no text, so that no client may write them."""

    @property
    def queue(self) -> EncodingQueue:
        """The requests whose images are not encoded yet."""

    def of_prompt(self, ids: list[int]) -> PromptEmbeddings:
        """Returns what a prompt with these ids, which `placeholder_ids` made, has beside text."""

    def encode(self, request: GenerationRequest) -> None:
        """Has what is missing encoded for a request, which was checked, and lets `queue` release it after that."""


class ReleasedRequest(NamedTuple):
    """A request that no longer waits for its images."""

    request: GenerationRequest
    """The request."""
    tokens: int
    """The tokens of images that were encoded for it."""
    error: RequestError | None
    """Why it cannot run; None: it may."""


class EncodingQueue(WaitingRequests, Protocol):
    """Requests whose images are encoded before they are queued for the engine's steps."""

    def cancel(self, number: int, index: int | None) -> bool:
        """Removes a request, or one of its choices; False if it is not here."""

    def poll(self) -> Iterable[ReleasedRequest]:
        """Returns the requests whose images have been encoded, or could not be."""


class Proposer(Protocol):
    """Drafts tokens for all sequences of an engine at once: a draft model, or a head of the model.

    Whether a draft token is right is decided where the model's own token is known (`step_runner`): it is kept when it
    is the token that would have been sampled there anyway, so completions are the same with and without drafts.
    """

    def propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        """Sets the draft tokens of each of these sequences, at most so many; all may be wrong. Raises nothing."""

    def computed(self, decoding: int, chunks: list[Chunk]) -> None:
        """Takes what it needs of a step that was computed: so many tokens of decoding sequences, then these chunks."""

    def leave(self, sequence: Sequence) -> None:
        """Frees what is kept for a sequence, if anything: it is over or preempted."""


ProposerFactory = Callable[["BlockManager", "BlockTables"], Proposer]
"""Makes what drafts tokens, for the KV blocks of an engine and the tables of its sequences."""
TextProposerFactory = Callable[[int], "TextProposer"]
"""Makes what drafts tokens for a sequence, from the most tokens that it compares."""


class DraftPlan(Protocol):
    """The plan of what drafts tokens for one model, and of how it is loaded beside the model's own network."""

    kind: str
    """What drafts: "", "draft", "mtp", "eagle3" or "prompt_lookup"."""
    trees: bool
    """Whether draft tokens may have alternatives."""
    ngrams: bool
    """Whether requests get drafts from their text without asking for them."""
    edits: Seq[NetworkEdit]
    """What changes the model's network, so that a head can go on from it."""

    def load(self, main: PagedModel, file: Path) -> int:
        """Loads the network that drafts, if there is one.

        Args:
            main: The model.
            file: The file of its network.

        Returns:
            The bytes that each block of the model takes besides its own.

        Raises:
            NotPageable: This engine cannot compute the network.
        """

    def proposer_factory(self, main: PagedModel, sizes: EngineSizes, prepare: Prepare) -> ProposerFactory | None:
        """Returns what makes the proposer of an engine; None: there is no network that drafts.

        Args:
            main: The model.
            sizes: The sizes of the engine.
            prepare: Computes the masks of grammars.
        """


class NoDrafts:
    """The DraftPlan of a model for which nothing drafts tokens."""

    kind = ""
    trees = ngrams = False
    edits: Seq[NetworkEdit] = ()

    def load(self, main: PagedModel, file: Path) -> int:
        """Loads nothing."""
        return 0

    def proposer_factory(self, main: PagedModel, sizes: EngineSizes, prepare: Prepare) -> ProposerFactory | None:
        """Returns None."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """The parts of an engine that depend on the model's kind and on the options."""

    grammars: PagedGrammars = field(default_factory=NoGrammars)
    """The grammars that texts can be held to."""
    new_proposer: ProposerFactory | None = None
    """Makes what drafts tokens for requests that may have drafts; None: nothing but their text does."""
    new_text_proposer: TextProposerFactory | None = None
    """Makes what drafts tokens from the text of a sequence where nothing else does; None: they get no drafts."""
    new_search: SearchFactory | None = None
    """Makes the searches of requests that want several beams; None: none may."""
    adapters: AdapterProvider = field(default_factory=AdapterProvider)
    """The adapters that requests may name."""
    clock: Callable[[], float] = time.process_time
    """Says what steps cost: CPU time, because other processes make a step longer without more work in it."""


class StepHook:
    """A feature's part of an engine. Each method does nothing here; only the engine's thread calls them."""

    @property
    def working(self) -> bool:
        """Whether the engine is to go on calling `poll`, though it may have nothing to compute."""
        return False

    def added(self, sequence: Sequence) -> None:
        """Is told of the first sequence of a request that is queued now."""

    def poll(self) -> Iterable[Record]:
        """Takes up what was done meanwhile, before sequences are started. Returns records for the front end."""
        return ()

    def must_wait(self, sequence: Sequence, root: Parent | None) -> bool:
        """Returns whether a waiting sequence is not to be started yet, so that those behind it pass.

        Args:
            sequence: The sequence, which could be started.
            root: The parent of its first block in the prefix cache; None: it does not use the prefix cache.
        """
        return False

    def give_back(self) -> None:
        """Frees the blocks of the KV cache that the feature holds: a running sequence lacks some."""

    def begin_step(self) -> None:
        """Is told that a step is about to be chosen and computed."""

    def end_step(self, tokens: int) -> None:
        """Is told that a step with chunks of prompts was computed.

        Args:
            tokens: The tokens of all its sequences.
        """

    def changed(self) -> None:
        """Is told that a step or a command is over, which may have changed the prefix cache."""

    def rest(self) -> None:
        """Is called again and again while no sequence runs; it may wait for a few milliseconds."""

    def handle(self, command: Record) -> bool:
        """Handles a command, unless it is another's; returns whether it did. Raises RequestError."""
        return False

    def stats(self) -> dict[str, float]:
        """Returns values of the feature's metrics, by the names of the metrics."""
        return {}

    def close(self) -> None:
        """Keeps what is to outlive the process, and ends threads."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """The parts of a loaded engine, to which a feature's `install` adds its own; equal to no other engine's."""

    config: EngineConfig
    """The options of the model."""
    settings: PipelineSettings
    """What the options mean for this model and machine."""
    network: PagedModel
    """The network, with the buffers of its cache."""
    blocks: BlockManager
    """The blocks of the KV cache; a feature may add a watcher to it."""
    states: StateCache
    """The states of a hybrid network."""
    hooks: list[StepHook]
    """What features do around steps; a feature adds its own."""
    out: list[Record]
    """Records for the front end."""
    versions: dict[str, str]
    """The versions of the libraries that compute, by their names."""
    adapter_name: Callable[[str], str]
    """Returns the name of an adapter for its key."""
